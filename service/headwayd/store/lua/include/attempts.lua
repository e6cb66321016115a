-- @include queue
-- Attempts: what a Get with an attempt id leased, so that the same call again gets the same. x:attempts holds the
-- random part of the leases' nonces, then the tickets with commas between; x:attempt_at when to look whether it can be
-- forgotten.

local LOOK_FIRST_MS, LOOK_AGAIN_MS = 1000, 10000   -- most work is short: so are most attempts

local function keep_attempt(S, attempt, random, tickets)
  redis.call('HSET', K.attempts, attempt, random .. table.concat(tickets, ','))
  redis.call('ZADD', K.attempt_at, S.now + LOOK_FIRST_MS, attempt)
  tidy_by(S, S.now + LOOK_FIRST_MS)
end

-- The leases of an attempt that still live: a list of {ticket, record, deadline}, and their nonces' random part. O(k).
local function leases_of_attempt(attempt)
  local kept = redis.call('HGET', K.attempts, attempt)
  if not kept then return {} end
  local random, live, tickets = string.sub(kept, 1, 16), {}, {}
  for ticket in string.gmatch(string.sub(kept, 17), '%d+') do tickets[#tickets + 1] = ticket end
  for i, packed in ipairs(fields_of(K.lease, tickets)) do
    if packed and string.sub(nonce_of(packed), 1, 16) == random then
      local deadline = redis.call('ZSCORE', K.leases, tickets[i])
      live[#live + 1] = { ticket = tickets[i], record = unpack_record(packed), deadline = deadline }
    end
  end
  return live, random
end
