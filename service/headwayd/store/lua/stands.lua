#!lua flags=allow-oom
-- Tells where some stand in the consumer line.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] a rank in the line
-- ARGV[4…] for each: waiter; the number with which it shall stand there again if it does not, '0' = it shall not; the
--         generation in which it began to wait, '' = whichever it is: in another it shall not
-- Reply: echo, OK, the policy's poll_base_ms, poll_per_position_ms and poll_max_ms, the number of who stands at that
--        rank, '' = nobody does, the numbers (include/numbers), then for each waiter its position, 0 = it does not stand
--        there, its number, and how many leases its stream owns; or why there is no queue.
-- O(k log n).
-- @include numbers
local RANK, FIRST = tonumber(ARGV[3]), 4
local S, status = open()
if not S then return { ARGV[1], status } end
for i = FIRST, #ARGV, 3 do
  if ARGV[i + 1] ~= '0' and is_life(S, ARGV[i + 2]) then
    redis.call('ZADD', K.consumers, 'NX', ARGV[i + 1], ARGV[i])
  end
end
commit(S, false, nil)
local reply = { ARGV[1], T.OK }
add_polls(S, reply)
reply[#reply + 1] = redis.call('ZRANGE', K.consumers, RANK - 1, RANK - 1, 'WITHSCORES')[2] or ''
for _, value in ipairs(line_numbers(S)) do reply[#reply + 1] = value end
for i = FIRST, #ARGV, 3 do
  local number = redis.call('ZSCORE', K.consumers, ARGV[i])
  reply[#reply + 1] = number and redis.call('ZRANK', K.consumers, ARGV[i]) + 1 or 0
  reply[#reply + 1] = number or '0'
  reply[#reply + 1] = redis.call('HGET', K.held, ARGV[i]) or '0'
end
return reply
