-- @include consumers
-- Places in the consumer line that are kept while nobody is there: between two polls, or for a moment after a stream
-- broke. x:places keeps of each: when the next poll may come and until when it is waited for (ms), and its strikes;
-- x:place_at when there is something to do about it.

local function forget_place(place)
  redis.call('ZREM', K.consumers, place)
  redis.call('HDEL', K.places, place)
  redis.call('ZREM', K.place_at, place)
end

-- Places that nobody came back to in time are waited for no longer; when `place_grace` is over, too, they are lost.
-- O(k log n), bounded.
local LOST_AT_ONCE = 500
local function lose_places(S)
  if S.standing == 0 or redis.call('EXISTS', K.place_at) == 0 then return end
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', K.place_at, '-inf', S.now, 'LIMIT', 0, LOST_AT_ONCE)) do
    local grace = policy_of(S, 'place_grace_ms')
    local kept = redis.call('HGET', K.places, place)
    local lost_at = kept and tonumber(string.match(kept, '^%d+ (%d+)')) + 1 + grace or 0
    if lost_at > S.now then
      redis.call('ZADD', K.place_at, lost_at, place)
    else
      forget_place(place)
    end
  end
end

-- A number before all that were given to newcomers, and behind those of this kind that are given already.
local function number_before_all(S)
  add(S, 'standing', 1)
  return S.standing - BEFORE_ALL
end
local function number_behind_all(S)
  add(S, 'standing', 1)
  return S.standing
end

-- Holders are waiters whose stream owns what they lease: x:owners tells of each step in which one leased how many of its
-- leases are out, and whose they are, and by itself of each that lapsed and was taken up again; x:held how many leases a
-- holder has out; x:turns, of those who keep standing, how many turns in a row each has had. An owner of every lease
-- would cost more than a tenth of all that a message does.
local function owned_by(count, waiter) return text_of(count) .. ' ' .. waiter end
local function owner_of(kept)
  local count, waiter = string.match(kept, '^(%d+) (.*)$')
  return tonumber(count), waiter
end

-- Whether this waiter's stream owns what was leased in a step. O(1).
local function is_owned_by(waiter, step)
  local kept = redis.call('HGET', K.owners, step)
  return kept and select(2, owner_of(kept)) == waiter
end

local function own_leases(waiter, step, count, keeps_standing)
  redis.call('HSET', K.owners, step, owned_by(count, waiter))
  redis.call('HINCRBY', K.held, waiter, count)
  if keeps_standing then redis.call('HINCRBY', K.turns, waiter, 1) end
end

local function forget_holder(waiter)
  redis.call('HDEL', K.held, waiter)
  redis.call('HDEL', K.turns, waiter)
end

-- Leases ended: `ends` has of each, or of some of a step together, `at`, by which they are in order, their step, and how
-- many they were. When a holder that keeps standing has settled the last of its turn it goes on before all others, up to
-- `turns` times in a row; of several, in the order in which their turns ended. O(k log k + steps log n).
local function end_turns(S, ends, is_settled)
  table.sort(ends, function(a, b) return a.at < b.at end)
  local steps, of_step, last_at = {}, {}, {}
  for _, one in ipairs(ends) do
    if not of_step[one.step] then steps[#steps + 1] = one.step end
    of_step[one.step], last_at[one.step] = (of_step[one.step] or 0) + one.count, one.at
  end
  local over, holders, ended, turn_at = {}, {}, {}, {}
  for i, kept in ipairs(fields_of(K.owners, steps)) do
    if kept then
      local step, count, waiter = steps[i], owner_of(kept)
      if count > of_step[step] then
        redis.call('HSET', K.owners, step, owned_by(count - of_step[step], waiter))
      else
        over[#over + 1] = step
      end
      if not ended[waiter] then holders[#holders + 1] = waiter end
      ended[waiter] = (ended[waiter] or 0) + of_step[step]
      turn_at[waiter] = math.max(turn_at[waiter] or 0, last_at[step])
    end
  end
  remove_fields(K.owners, over)
  table.sort(holders, function(a, b) return turn_at[a] < turn_at[b] end)
  for _, waiter in ipairs(holders) do
    if redis.call('HINCRBY', K.held, waiter, -ended[waiter]) <= 0 then
      redis.call('HDEL', K.held, waiter)
      local had, most = tonumber(redis.call('HGET', K.turns, waiter) or 0), policy_of(S, 'turns')
      if had > 0 and is_settled and (most == 0 or had < most) and is_heard(S, process_of(waiter)) then
        redis.call('ZADD', K.consumers, 'NX', number_before_all(S), waiter)
      else
        redis.call('HDEL', K.turns, waiter)
      end
    end
  end
end
