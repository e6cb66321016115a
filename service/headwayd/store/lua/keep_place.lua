#!lua flags=allow-oom
-- Keeps the place of someone in the consumer line while nobody is there for it.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] waiter; ARGV[4] the place; ARGV[5] the number in line, '0' = whatever it is
-- ARGV[6] ms until the next poll may come; ARGV[7] ms for which it is waited for, '-1' = not at all
-- ARGV[8] generation in which the waiter began to wait; '' = whichever it is
-- Reply: echo, OK, now, next due, position (0: neither stood there, so nothing is kept), '1' if the waiter's stream still
--        has leases (see find_absent), the numbers (include/numbers); or why there is no queue.
-- O(log n). Calls the next consumers, if there is something for them.
-- @include numbers stands
local S, status = open()
if not S then return { ARGV[1], status } end
if not is_life(S, ARGV[8]) then
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_DELETED }
end
local waiter, place, number = ARGV[3], ARGV[4], tonumber(ARGV[5])
if number == 0 then
  number = number_of(waiter) or number_of(place)
end
local owning = end_waiter(waiter)
if number then
  redis.call('ZADD', K.consumers, number, place)
  local strikes = string.match(redis.call('HGET', K.places, place) or '', '(%d+)$') or '0'
  local min_at, max_at = S.now + tonumber(ARGV[6]), S.now + tonumber(ARGV[7])
  redis.call('HSET', K.places, place, text_of(min_at) .. ' ' .. text_of(max_at) .. ' ' .. strikes)
  S.extras = 1
  redis.call('ZADD', K.place_at, max_at + 1, place)
end
local due = commit(S, false, nil)
local position = number and redis.call('ZRANK', K.consumers, place) + 1 or 0
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(due), position, owning }
for _, value in ipairs(line_numbers(S)) do reply[#reply + 1] = value end
return reply
