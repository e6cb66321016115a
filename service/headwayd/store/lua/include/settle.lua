-- @include line
-- Who may settle what. A lease is named by generation, ticket and nonce (which holds the attempt); all are compared
-- whole.

-- What a token that is not a live lease is: T.LAPSED (its message waits, and nobody took it since), T.ALREADY_ACKED,
-- T.STALE, T.DEAD or T.GONE; for LAPSED and DEAD also the record.
local function afterlife(S, name, nonce)
  local side = redis.call('HGET', K.side, name)
  if side then
    local record = unpack_record(side)
    if record.nonce ~= nonce or not is_waiting(S, name) then return T.STALE end
    if has_flag(record.flags, FLAG.LAPSED) then return T.LAPSED, record end
    return T.STALE
  end
  local corpse = redis.call('HGET', K.corpse, name)
  if corpse then
    local record = unpack_corpse(corpse)
    if record.nonce == nonce then return T.DEAD, record end
    return T.STALE
  end
  local noted = redis.call('HGET', K.acked, 'n' .. name)
  if noted then
    if string.sub(noted, 2, 21) ~= nonce then return T.STALE end
    local mark = string.sub(noted, 1, 1)
    if mark == MARK.DONE then return T.ALREADY_ACKED end
    return (mark == MARK.BACK or mark == MARK.REPLACED) and T.STALE or T.GONE
  end
  if has_bit(S, MARK.DONE, name) then return T.ALREADY_ACKED end
  return bundle_with(S, name) and T.STALE or T.GONE
end

-- The leases named by ARGV from `from` on: their tickets, generations, nonces, and which of all they are (from 1 on).
-- Those of one step have all but the ticket in common, so each run of such begins with generation, nonce and its count,
-- and then come tickets; or its count below 0, and the first ticket, behind which the others follow. A run whose leases
-- are in a bundle is left to take(bundle, nonce, before, run, first, at): `before` leases are named before its `run`, whose
-- tickets follow `first`, or are ARGV's behind `at`; without `take` their bundle is untied. O(k).
local FIRST_ATTEMPT = '\0\0\0\1'
local function named_leases(S, from, count, take)
  local args, tickets, generations, nonces, numbers, named, kept = ARGV, {}, {}, {}, {}, 0, 0
  while named < count do
    local generation, nonce, run = args[from], args[from + 1], tonumber(args[from + 2])
    if nonce == NO_NONCE then generation = '' end   -- nobody was ever given that: see give_back
    local at, first = from + 2, run < 0 and tonumber(args[from + 3])
    if first then run = -run end
    local bundle = generation == S.gen and read_bundle(S, string.sub(nonce, 1, 16))
    if bundle and take and string.sub(nonce, 17) == FIRST_ATTEMPT then
      take(bundle, nonce, named, run, first, at)
    else
      if bundle then untie(S, bundle) end
      for i = 1, run do
        kept = kept + 1
        tickets[kept], generations[kept], nonces[kept] = args[at + i], generation, nonce
        if first then tickets[kept] = text_of(first + i - 1) end
        numbers[kept] = named + i
      end
    end
    named, from = named + run, at + 1 + (first and 1 or run)
  end
  return tickets, generations, nonces, numbers
end

-- Finds the `count` leases named by ARGV from `from` on. Calls act(i, ticket, packed) for each that is live, with its
-- packed record (true = it ends the lease, so that the same lease named again is no longer live), and for each that is
-- not other(i, ticket, status, record, is_of_this_life). O(k).
local function each_lease(S, from, count, act, other)
  local tickets, generations, nonces = named_leases(S, from, count)
  local records = fields_of(K.lease, tickets)
  local seen = {}
  for i = 1, count do
    local ticket, nonce = tickets[i], nonces[i]
    local packed = not seen[ticket] and (records[i] or redis.call('HGET', K.lease, ticket))   -- taken up again just now?
    if generations[i] ~= S.gen then
      other(i, ticket, T.GONE)
    elseif packed and nonce_of(packed) == nonce then
      seen[ticket] = act(i, ticket, packed)
    elseif packed then
      other(i, ticket, T.STALE, nil, true)
    else
      local status, record = afterlife(S, ticket, nonce)
      other(i, ticket, status, record, true)
    end
  end
end

-- Whether any lease has a holder, and any message an id. Mostly neither.
local function holders_and_ids()
  local both = redis.call('EXISTS', K.owners, K.ids)
  if both ~= 1 then return both == 2, both == 2 end
  local has_ids = redis.call('EXISTS', K.ids) == 1
  return not has_ids, has_ids
end

local BODIES_AT_ONCE = 32   -- each may be large, and nothing but its digest is wanted

-- Acks the `count` leases named by ARGV from `from` on. Appends to `reply` how many of them were not acked at their first
-- attempt, then number (from 1 on), status and failures of each of those. Returns how many leases it ended, how many
-- messages are done, and the numbers (as keys) of those that came late: they were no leases any more. O(k log n).
local function ack_leases(S, from, count, result, reply)
  local head, exceptions, ended, dropped, seen = #reply + 1, 0, 0, 0, {}
  local late, late_count = {}, 0
  reply[head] = 0
  local function except(i, status, failures)
    local at = head + 3 * exceptions
    reply[at + 1], reply[at + 2], reply[at + 3] = i, status, failures
    exceptions = exceptions + 1
  end
  local ending = new_ending(MARK.DONE, result)
  local function end_of(i, ticket, record, element)
    end_message(S, ticket, record, element, ending)
    if record.failures > 0 then except(i, T.ACKED, record.failures) end
  end
  local function end_late(i, ticket, nonce)
    local status, record = afterlife(S, ticket, nonce)
    if status == T.LAPSED then
      end_of(i, ticket, record, (take_one(S, ticket)))
      late[i], late_count = true, late_count + 1
    else
      except(i, status, record and record.failures or 0)
    end
  end
  local is_watched = S.watched_until > S.now
  local done = bits_of(S, MARK.DONE)
  local has_holders, has_ids = holders_and_ids()
  local ends = has_holders and {} or nil   -- only then it matters whose they were
  local function note_end(number, step, count)
    local last = ends[#ends]
    if last and last.step == step then
      last.at, last.count = number, last.count + count
    else
      ends[#ends + 1] = { at = number, step = step, count = count }
    end
  end
  -- What is in a bundle has no id, and no attempt of it failed.
  local function ack_bundled(bundle, nonce, before, run, first, at)
    local settled, changed, left, last = bundle.settled, {}, bundle.left, before + run
    if first == bundle.first and run == bundle.count and run == left then   -- all at once: nobody has to look at bits
      left = 0
      set_bits(S, done, first, first + run - 1)
      for ticket = first, is_watched and first + run - 1 or 0 do tell(S, 'E', text_of(ticket), MARK.DONE .. ' ') end
    end
    for i = 1, left > 0 and run or 0 do
      local ticket = first and first + i - 1 or tonumber(ARGV[at + i])
      local nth = ticket - bundle.first
      local place = nth % 8
      local byte_at, value = (nth - place) / 8 + 1, 2 ^ place
      local byte = nth >= 0 and nth < bundle.count and (changed[byte_at] or string.byte(settled, byte_at))
      if byte and byte % (2 * value) < value then
        changed[byte_at] = byte + value
        left, last = left - 1, before + i
        if is_watched then tell(S, 'E', text_of(ticket), MARK.DONE .. ' ') end
        set_bit(S, done, ticket)
      else
        end_late(before + i, text_of(ticket), nonce)
      end
    end
    local acked = bundle.left - left
    if acked == 0 then return end
    if left > 0 then bundle.settled = with_bytes(settled, changed) end
    shrink(S, bundle, left)
    if left > 0 then untie_if_sparse(S, bundle) end
    if ends then note_end(last, bundle.step, acked) end
    ended = ended + acked
  end

  local tickets, generations, nonces, numbers = named_leases(S, from, count, result == '' and ack_bundled or nil)
  local records = fields_of(K.lease, tickets)
  local is_plain = result == '' and not has_ids   -- with ids the elements are looked at
  local elements, passed, read_to = {}, 0, 0
  local function element_of(i)
    if i > read_to then
      local some = {}
      for at = i, math.min(i + BODIES_AT_ONCE - 1, #tickets) do some[#some + 1] = tickets[at] end
      elements, passed, read_to = fields_of(K.body, some), i - 1, i - 1 + #some
    end
    return elements[i - passed] or ''
  end
  -- Messages that were put together and leased together have the same record, so it is looked at but once.
  local known, known_nonce, is_known_fresh, known_record, known_step
  for i = 1, #tickets do
    local ticket, packed, nonce = tickets[i], records[i], nonces[i]
    if packed and packed ~= known then
      known, known_nonce, is_known_fresh, known_record, known_step = packed, nonce_of(packed), is_fresh(packed), nil, nil
    end
    if generations[i] ~= S.gen then
      except(numbers[i], T.GONE, 0)
    elseif packed and not seen[ticket] and known_nonce == nonce then
      if is_plain and is_known_fresh then   -- the same as end_of
        if is_watched then tell(S, 'E', ticket, MARK.DONE .. ' ') end
        set_bit(S, done, ticket)
      else
        known_record = known_record or unpack_record(packed)
        local is_named = has_ids or has_flag(known_record.flags, FLAG.NAMED)   -- x:ids lacks what foreign clients put
        end_of(numbers[i], ticket, known_record, is_named and element_of(i) or '')
      end
      seen[ticket] = true
      ended, dropped = ended + 1, dropped + 1
      tickets[dropped] = ticket
      if ends then
        known_step = known_step or owned_as(packed, ticket)
        note_end(numbers[i], known_step, 1)
        if #known_step > 16 then known_step = nil end   -- it has the ticket in it
      end
    elseif packed and not seen[ticket] then
      except(numbers[i], T.STALE, 0)
    else
      end_late(numbers[i], ticket, nonce)
    end
  end
  for i = #tickets, dropped + 1, -1 do tickets[i] = nil end
  finish_names(S, ending)
  if ends and #ends > 0 then end_turns(S, ends, true) end
  forget_leases(S, tickets)
  local acked = ended + late_count
  if acked > 0 then
    add(S, 'n_acked', acked)
    count_rate(S, 'ack_sum', acked)
  end
  reply[head] = exceptions
  return ended, acked, late
end
