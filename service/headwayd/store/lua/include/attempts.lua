-- @include bundles
-- Attempts: what a Get with an attempt id leased, so that the same call again gets the same. x:attempts holds the
-- random part of the leases' nonces, then the tickets: the first, '-' and the last if they follow each other, else all,
-- with commas between; once it was asked again also '/', and for each who asked and has not gone its letters and '/':
-- only when none is left are the leases given back. One that was answered never goes; and of two who ask nobody knows
-- which is the later one for their caller, because a step may come late. Who asks has 8 bytes, with which the random
-- part of its own leases begins: so it is known who asked first. x:attempt_at has when to look whether an attempt can
-- be forgotten. What lapsed once is the attempt's no more, also if it is taken up again: else it would have to be
-- remembered for as long as nobody takes it.

local LOOK_FIRST_MS, LOOK_AGAIN_MS = 1000, 10000   -- most work is short: so are most attempts
local ASKER_SIZE = 8
local MOST_ASKERS_SIZE = 544   -- 32 of them; of more only that there are some is noted, and their leases lapse

local function keep_attempt(S, attempt, random, tickets_text)
  redis.call('HSET', K.attempts, attempt, random .. tickets_text)
  redis.call('ZADD', K.attempt_at, S.now + LOOK_FIRST_MS, attempt)
  tidy_by(S, S.now + LOOK_FIRST_MS)
end

-- The random part of an attempt's leases, which names their bundle, and its tickets as text, with what stands behind
-- them; nil if it is not known.
local function attempt_of(attempt)
  local kept = redis.call('HGET', K.attempts, attempt)
  if not kept then return nil end
  return string.sub(kept, 1, 16), string.sub(kept, 17)
end

-- The letters of an asker, and '/': two letters for each of the bytes with which `asker` begins. No digits, because
-- each number behind the random part is taken for a ticket.
local function letters_of(asker)
  local letters = {}
  for i = 1, ASKER_SIZE do
    local byte = string.byte(asker, i)
    letters[i] = string.char(97 + math.floor(byte / 16), 97 + byte % 16)
  end
  return table.concat(letters) .. '/'
end
local function without(askers, asker) return (string.gsub(askers, letters_of(asker), '')) end

-- It was asked again by this one, and these are its leases that live. All are told, so that a version that knows of no
-- askers finds them as numbers. O(k).
local function note_asker(attempt, random, tickets_text, leases, asker)
  local askers = string.match(tickets_text, '/.*') or '/' .. letters_of(random)
  askers = without(askers, asker) .. letters_of(asker)
  if #askers > MOST_ASKERS_SIZE then askers = '/some/' end
  local tickets = {}
  for i, lease in ipairs(leases) do tickets[i] = lease.ticket end
  redis.call('HSET', K.attempts, attempt, random .. table.concat(tickets, ',') .. askers)
end

-- One who asked for an attempt goes. Whether it was asked again, and all who asked have gone. `claim`: the asker's
-- bytes and the attempt; '' = none.
local function have_all_gone(claim)
  local attempt = string.sub(claim, ASKER_SIZE + 1)
  local random, text = attempt_of(attempt)
  local tickets, askers = string.match(text or '', '^([^/]*)(/.*)$')
  if not askers then return false end
  local others = without(askers, claim)
  if others ~= askers then redis.call('HSET', K.attempts, attempt, random .. tickets .. others) end
  return others == '/'
end

-- The tickets in the text that is kept of an attempt.
local function tickets_of(tickets_text)
  local tickets, first, last = {}, string.match(tickets_text, '^(%d+)%-(%d+)$')
  if first then
    for number = tonumber(first), tonumber(last) do tickets[#tickets + 1] = text_of(number) end
  else
    for ticket in string.gmatch(tickets_text, '%d+') do tickets[#tickets + 1] = ticket end
  end
  return tickets
end

-- Those of an attempt's leases that live and are in no bundle: a list of {ticket, record, deadline}. O(k).
local function single_leases(random, tickets_text)
  local live = {}
  if redis.call('EXISTS', K.lease) == 0 then return live end
  local tickets = tickets_of(tickets_text)
  for i, packed in ipairs(fields_of(K.lease, tickets)) do
    if packed and is_of_step(packed, random) then
      local deadline = redis.call('ZSCORE', K.leases, tickets[i])
      live[#live + 1] = { ticket = tickets[i], record = unpack_record(packed), deadline = deadline }
    end
  end
  return live
end

-- The leases of an attempt that still live, each by itself from now on, and what attempt_of tells. O(k).
local function leases_of_attempt(S, attempt)
  local random, tickets_text = attempt_of(attempt)
  if not random then return {} end
  local bundle = read_bundle(S, random)
  if bundle then untie(S, bundle) end
  return single_leases(random, tickets_text), random, tickets_text
end

-- Whether any of its leases lives, and how many it had to look at to know. O(k).
local function attempt_lives(S, attempt)
  local random, tickets_text = attempt_of(attempt)
  if not random then return false, 0 end
  if read_bundle(S, random) then return true, 0 end
  if redis.call('EXISTS', K.lease) == 0 then return false, 0 end
  local tickets = tickets_of(tickets_text)
  for _, packed in ipairs(fields_of(K.lease, tickets)) do
    if packed and is_of_step(packed, random) then return true, #tickets end
  end
  return false, #tickets
end
