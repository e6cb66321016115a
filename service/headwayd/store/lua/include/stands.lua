-- @include line

local FOUND_AT_ONCE = 1000
local FROM_THE_FIRST = 'b0'   -- cursors: 'b' + ticket in front of the bundles to look at; 's' + that of a scan of the rest

-- Tells of a waiter whether its process is gone. Those that ARGV names, from one to another, are taken for present.
local function absence_of_all_but(S, from, to)
  S.present = {}
  for i = from, to do S.present[ARGV[i]] = true end
  return function(waiter) return not is_heard(S, process_of(waiter)) end
end

-- The same, or, if a `one` is named, whether it is that.
local function absence_of(S, one, from, to)
  if one ~= '' then return function(waiter) return waiter == one end end
  return absence_of_all_but(S, from, to)
end

local function is_owned_by_gone(kept, is_gone)
  return kept and is_gone((select(2, owner_of(kept))))
end

-- Looks at some of the leases, from a cursor on, and appends to `found` the tickets of those that streams own whose
-- waiter is_gone. Returns the next cursor; '' = there are no more. Bundles come first: what is untied meanwhile stands
-- among the rest. What is leased all the while is found, maybe twice. O(FOUND_AT_ONCE + leases of a bundle).
local function find_owned(S, cursor, is_gone, found)
  local at = string.sub(cursor, 2)
  if string.sub(cursor, 1, 1) == 'b' then
    local steps = redis.call('ZRANGEBYSCORE', K.bundle_from, '(' .. at, '+inf', 'LIMIT', 0, FOUND_AT_ONCE)
    for i, kept in ipairs(fields_of(K.owners, steps)) do
      local bundle = is_owned_by_gone(kept, is_gone) and read_bundle(S, steps[i])
      if bundle then
        for ticket = bundle.first, bundle.first + bundle.count - 1 do
          if is_out(bundle, ticket) then found[#found + 1] = text_of(ticket) end
        end
        if #found >= FOUND_AT_ONCE then return 'b' .. text_of(bundle.first) end
      end
    end
    if #steps < FOUND_AT_ONCE then return 's0' end
    return 'b' .. redis.call('ZSCORE', K.bundle_from, steps[#steps])
  end
  local scan, steps = redis.call('HSCAN', K.lease, at, 'COUNT', FOUND_AT_ONCE), {}
  local leases = scan[2]
  for i = 1, #leases, 2 do steps[#steps + 1] = owned_as(leases[i + 1], leases[i]) end
  for i, kept in ipairs(fields_of(K.owners, steps)) do
    if is_owned_by_gone(kept, is_gone) then found[#found + 1] = leases[2 * i - 1] end
  end
  return scan[1] == '0' and '' or 's' .. scan[1]
end

-- Gives back, at no attempt's cost, those of these leases that streams own whose waiter is_gone. O(k log n), and what
-- untying their bundles takes.
local function release_owned(S, tickets, is_gone)
  for _, ticket in ipairs(tickets) do untie_with(S, ticket) end
  local leases, steps = fields_of(K.lease, tickets), {}
  for i, packed in ipairs(leases) do steps[i] = packed and owned_as(packed, tickets[i]) or '' end
  local theirs, records, seen, back = {}, {}, {}, {}
  for i, kept in ipairs(fields_of(K.owners, steps)) do
    if is_owned_by_gone(kept, is_gone) and not seen[tickets[i]] then
      theirs[#theirs + 1], records[#records + 1], seen[tickets[i]] = tickets[i], leases[i], true
    end
  end
  for i, element in ipairs(fields_of(K.body, theirs)) do
    local record = unpack_record(records[i])
    record.flags = with_flag(record.flags, FLAG.RELEASED)
    back[i] = { ticket = tonumber(theirs[i]), element = element, record = record }
  end
  drop_leases(S, theirs, false, records)
  give_back(S, back)
end

-- A waiter is no more. Returns '1' if it may still have something leased because the answer that told of it was lost:
-- then that is to be found and given back, which takes steps (find_absent). O(log n).
local function end_waiter(waiter)
  redis.call('ZREM', K.consumers, waiter)
  redis.call('HDEL', K.turns, waiter)
  return redis.call('HEXISTS', K.held, waiter) == 1 and '1' or '0'
end

-- What is kept of a place, and its number in line; nil if it is lost. O(1).
local function kept_place(place)
  local kept = redis.call('HGET', K.places, place)
  local number = kept and number_of(place)
  if number then return kept, number end
end

-- Somebody comes back to its place, of which that is `kept`. Returns nil; or why it cannot, and how many ms it is too
-- early. Whoever comes when something can be leased for it (`units` in all; nil: in any case), or when more are gone of
-- those before it than one step takes away, is never too early, nor is who does not poll. O(log n), and what
-- walk_consumers takes.
local function come_back(S, place, kept, units)
  local min_at, max_at, strikes = times_of(S, place, kept)
  max_at = text_of(max_at)
  local early = min_at - policy_of(S, 'poll_tolerance_ms') - S.now
  if early > 0 and units and (units == 0 or count_ahead(S, place, units) >= units and not S.is_walk_cut) then
    strikes = strikes + 1
    if strikes >= policy_of(S, 'poll_strikes') then
      forget_place(place)
      return T.PLACE_LOST, '0'
    end
    redis.call('HSET', K.places, place, text_of(min_at) .. ' ' .. max_at .. ' ' .. strikes)
    return T.POLL_TOO_SOON, text_of(min_at - S.now)
  end
  -- The entry stays, for its strikes, until the call ends; who dies meanwhile loses the place.
  if early <= 0 then strikes = math.max(0, strikes - 1) end
  redis.call('HSET', K.places, place, text_of(min_at) .. ' ' .. max_at .. ' ' .. strikes)
  redis.call('ZREM', K.consumers, place)
  return nil
end
