#!lua flags=allow-oom
-- Tells what happened to messages since the last look, and goes on to log it.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] the generation that was seen; ARGV[4] how many events had been logged then
-- Reply: echo, OK, the policy's poll_base_ms, poll_per_position_ms and poll_max_ms, the numbers (include/numbers), '1' if
--        the events since then follow, '0' if some are not known any more, the events; or why there is no queue.
-- O(events told).
-- @include numbers
local S, status = open()
if not S then return { ARGV[1], status } end
keep_watching(S)
commit(S, false, nil)
local reply = { ARGV[1], T.OK }
add_polls(S, reply)
for _, value in ipairs(line_numbers(S)) do reply[#reply + 1] = value end
local new = S.logged - tonumber(ARGV[4])
if ARGV[3] ~= S.gen or new < 0 or new > redis.call('LLEN', K.log) then
  reply[#reply + 1] = '0'
  return reply
end
reply[#reply + 1] = '1'
if new > 0 then
  for _, event in ipairs(redis.call('LRANGE', K.log, -new, -1)) do reply[#reply + 1] = event end
end
return reply
