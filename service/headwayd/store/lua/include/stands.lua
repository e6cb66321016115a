-- @include line

-- Gives back, at no attempt's cost, what streams have leased whose waiter is_gone. O(steps with leases out), and O(all
-- leases) if there is something to give back.
local function release_owned(S, is_gone)
  local is_theirs, owners = {}, redis.call('HGETALL', K.owners)
  for i = 1, #owners, 2 do
    local _, waiter = owner_of(owners[i + 1])
    if is_gone(waiter) then is_theirs[owners[i]] = true end
  end
  if next(is_theirs) == nil then return end
  for step in pairs(is_theirs) do
    local bundle = read_bundle(S, step)
    if bundle then untie(S, bundle) end
  end
  local tickets, records, leases = {}, {}, redis.call('HGETALL', K.lease)
  for i = 1, #leases, 2 do
    if is_theirs[owned_as(leases[i + 1], leases[i])] then
      tickets[#tickets + 1], records[#records + 1] = leases[i], leases[i + 1]
    end
  end
  local elements, back = fields_of(K.body, tickets), {}
  for i, ticket in ipairs(tickets) do
    local record = unpack_record(records[i])
    record.flags = with_flag(record.flags, FLAG.RELEASED)
    back[i] = { ticket = tonumber(ticket), element = elements[i], record = record }
  end
  drop_leases(S, tickets, false, records)
  return_to_head(S, back)
end

-- A waiter is no more: its turns, and what it may still have leased because the answer that told of it was lost.
-- O(log n), and O(all leases) in that case.
local function end_waiter(S, waiter)
  redis.call('ZREM', K.consumers, waiter)
  if redis.call('HEXISTS', K.held, waiter) == 1 then
    release_owned(S, function(owner) return owner == waiter end)
  end
  forget_holder(waiter)
end

-- What is kept of a place, and its number in line; nil if it is lost. O(1).
local function kept_place(place)
  local kept = redis.call('HGET', K.places, place)
  local number = kept and redis.call('ZSCORE', K.consumers, place)
  if number then return kept, tonumber(number) end
end

-- Somebody comes back to its place, of which that is `kept`. Returns nil; or why it cannot, and how many ms it is too
-- early. Whoever comes when something can be leased for it (`units` in all; nil: in any case) is never too early, nor is
-- who does not poll. O(log n).
local function come_back(S, place, kept, units)
  local min_at, max_at, strikes = times_of(S, place, kept)
  max_at = text_of(max_at)
  local early = min_at - policy_of(S, 'poll_tolerance_ms') - S.now
  if early > 0 and units and (units == 0 or count_ahead(S, place, units) >= units) then
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
