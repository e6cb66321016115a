-- @include queue
-- The consumer line: who is there to be called, and whose turn it is.
--
-- Who stands there is a waiter (process name, '#', number) whose process listens to its channel, or a place kept between
-- two calls ('@…'; include/kept). A kept place has what it waits for held back for it up to its poll_max; afterwards it
-- only keeps its number, while `place_grace` lasts. Behind KEPT_NEAR of such no more stand in the way: they are put away,
-- behind all others, AWAY from their number, and come back with it. (A version that does not know of it lets who comes
-- back stand there.)
local PRESENT, ABSENT, GONE = 1, 2, 3
local BEFORE_ALL, AWAY = 1000000000000000, 4000000000000000   -- whoever stands with a number above the first is away
local KEPT_NEAR = 1000

-- The number of who stands in line, also if it was put away; nil if it does not. O(1).
local function number_of(waiter)
  local number = tonumber(redis.call('ZSCORE', K.consumers, waiter))
  return number and number > BEFORE_ALL and number - AWAY or number
end
local function process_of(waiter) return string.match(waiter, '^(.*)#%d+$') or waiter end
local function is_kept_place(waiter) return string.byte(waiter) == 64 end
local function is_heard(S, process, calls)
  local known = calls and 'called' or 'present'
  S[known] = S[known] or {}
  if S[known][process] == nil then
    local channel = ARGV[2] .. WAKE_CHANNEL .. process
    local listeners = calls and redis.call('PUBLISH', channel, BASE) or redis.call('PUBSUB', 'NUMSUB', channel)[2]
    S[known][process] = listeners > 0
  end
  return S[known][process]
end
-- When the next poll for a kept place may come, until when it is waited for, and its strikes. The time until the next
-- poll is no longer than the window behind it, or, where the policy's are longest, than what that leaves of the longest
-- of all (domain/hints.py). If more of it is left the clock has gone back: then the poll is due, and the window runs anew.
local LEAST_WINDOW_MS, LONGEST_POLL_MS = 10000, 607000
local function times_of(S, place, kept)
  local min_at, max_at, strikes = string.match(kept, '^(%d+) (%d+) (%d+)$')
  min_at, max_at = tonumber(min_at), tonumber(max_at)
  local longest = math.max(max_at - min_at, LEAST_WINDOW_MS)
  if min_at - S.now > longest then
    if 2 * policy_of(S, 'poll_max_ms') > LONGEST_POLL_MS then longest = LONGEST_POLL_MS - longest end
    if min_at - S.now > longest then
      min_at, max_at = S.now, S.now + math.min(longest + max_at - min_at, LONGEST_POLL_MS)
      redis.call('HSET', K.places, place, text_of(min_at) .. ' ' .. text_of(max_at) .. ' ' .. strikes)
      S.extras = 1
      redis.call('ZADD', K.place_at, max_at + 1, place)
    end
  end
  return min_at, max_at, tonumber(strikes)
end
-- `kept`: what x:places has of it, if that is known; false = nothing.
local function presence_of(S, waiter, calls, kept)
  if is_kept_place(waiter) then
    if kept == nil then kept = redis.call('HGET', K.places, waiter) end
    if not kept then return GONE end
    local _, max_at = times_of(S, waiter, kept)
    return max_at >= S.now and PRESENT or ABSENT
  end
  return is_heard(S, process_of(waiter), calls) and PRESENT or GONE
end

-- How many messages can be leased now.
local function units_of(S)
  if S.len == 0 or S.paused == 1 or not role_is_free('consumer') then return 0 end
  local limit = policy_of(S, 'limit')
  return limit == 0 and S.len or math.min(S.len, math.max(0, limit - leased_count(S)))
end

-- Goes over the consumer line from its head on; those who are gone are dropped, those who are absent passed over or put
-- away. Calls visit(waiter) for each that is present, and for `me`; true ends the walk. `calls`: whom it comes to is
-- called. When it has dropped and put away `most` (CHANGED_AT_ONCE, or all) it leaves the rest to a step that comes at
-- once, and returns true. O(visited + KEPT_NEAR + most).
local LOOK_AT, CHANGED_AT_ONCE = 32, 1000
local function walk_consumers(S, me, calls, most, visit)
  local has_places = S.standing > 0 and has_extra(S, K.place_at)
  local count = has_places and redis.call('ZCOUNT', K.consumers, '-inf', BEFORE_ALL) or math.huge   -- not away
  local at, absent, changed = 0, 0, 0
  while at < count do
    if changed >= most then
      S.is_walk_cut = true
      return true
    end
    local part = redis.call('ZRANGE', K.consumers, at, math.min(at + LOOK_AT, count) - 1)
    local kept = has_places and #part > 0 and redis.call('HMGET', K.places, unpack(part)) or {}
    local gone, is_over = {}, #part < LOOK_AT
    for i, waiter in ipairs(part) do
      local presence = waiter == me and PRESENT or presence_of(S, waiter, calls, kept[i] or false)
      if presence == GONE then
        gone[#gone + 1] = waiter
      elseif presence == ABSENT and absent >= KEPT_NEAR then
        redis.call('ZINCRBY', K.consumers, AWAY, waiter)
        count, changed = count - 1, changed + 1
      else
        if presence == ABSENT then absent = absent + 1 end
        at = at + 1
        if presence == PRESENT and visit(waiter) then
          is_over = true
          break
        end
      end
    end
    if gone[1] then
      remove_members(K.consumers, gone)
      count, changed = count - #gone, changed + #gone
    end
    if is_over then return false end
  end
  return false
end

-- How many are present before `me` in the consumer line (nil: in the whole line), counted up to `most`, which it also is
-- where not all could be looked at.
local function count_ahead(S, me, most)
  local ahead = 0
  local is_cut = walk_consumers(S, me, false, CHANGED_AT_ONCE, function(waiter)
    if waiter == me then return true end
    ahead = ahead + 1
    return ahead >= most
  end)
  return is_cut and most or ahead
end

-- Calls those whose turn it is in the consumer line: as many as there are messages that can be leased. When the first
-- of them lets its turn pass for OFFER_MS its process is taken for dead here, and its waiters are dropped; should it
-- live, they come back with their numbers. O(called), and what walk_consumers takes besides; if it hangs, O(dropped).
local CALLED_AT_ONCE = 16
local function call_consumers(S)
  local units = math.min(units_of(S), CALLED_AT_ONCE)
  local first = ''
  if units > 0 then
    if S.turn_at > S.now then set(S, 'turn_at', S.now) end   -- the clock has gone back: its time begins anew
    local most = CHANGED_AT_ONCE
    if S.turn_to ~= '' and S.now - S.turn_at >= OFFER_MS and redis.call('ZREM', K.consumers, S.turn_to) == 1 then
      S.called = { [process_of(S.turn_to)] = false }
      most = math.huge   -- the next step would hear of it again, and wait for it anew
    end
    walk_consumers(S, nil, true, most, function(waiter)
      if first == '' and not is_kept_place(waiter) then first = waiter end
      units = units - 1
      return units == 0
    end)
  end
  if S.turn_to ~= first then
    set(S, 'turn_to', first)
    set(S, 'turn_at', S.now)
  end
end
