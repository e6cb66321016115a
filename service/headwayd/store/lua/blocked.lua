#!lua flags=allow-oom
-- Tells where the blocked Puts of some producers stand in the producer line.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] count of producers, then the name of each; then, for each Put that shall stand there again if it does not:
--         waiter, its number, its producer's name ('' = none), the generation in which it began to wait, '' = whichever
--         it is: in another it shall not
-- Reply: echo, OK, the policy's poll_base_ms, poll_per_position_ms and poll_max_ms, the numbers (include/numbers), then
--        for each producer the position of its Put that has waited longest, 0 = none waits; or why there is no queue.
-- O(k log n + all blocked Puts that have a producer's name).
-- @include numbers
local COUNT, NAMES_AT = tonumber(ARGV[3]), 4
local S, status = open()
if not S then return { ARGV[1], status } end
for i = NAMES_AT + COUNT, #ARGV, 4 do
  if is_life(S, ARGV[i + 3]) then join_producers(S, ARGV[i + 1], ARGV[i], ARGV[i + 2]) end
end
commit(S, false, nil)

local is_asked, first = {}, {}   -- first: producer → the waiter with its lowest number
for i = NAMES_AT, NAMES_AT + COUNT - 1 do is_asked[ARGV[i]] = true end
local blocked = COUNT > 0 and redis.call('HGETALL', K.blocked) or {}
for i = 1, #blocked, 2 do
  local waiter, producer = blocked[i], blocked[i + 1]
  if is_asked[producer] then
    local number = tonumber(redis.call('ZSCORE', K.producers, waiter) or nil)
    if number and (not first[producer] or number < first[producer].number) then
      first[producer] = { waiter = waiter, number = number }
    end
  end
end

local reply = { ARGV[1], T.OK }
add_polls(S, reply)
for _, value in ipairs(line_numbers(S)) do reply[#reply + 1] = value end
for i = NAMES_AT, NAMES_AT + COUNT - 1 do
  local one = first[ARGV[i]]
  reply[#reply + 1] = one and redis.call('ZRANK', K.producers, one.waiter) + 1 or 0
end
return reply
