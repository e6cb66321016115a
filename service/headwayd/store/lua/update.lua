#!lua flags=allow-oom
-- Changes policy fields.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3…] name and value of each field to change
-- Reply: echo, OK, report; or echo and why there is no queue.
-- O(1). Wakes the first waiting producer if there is room now, and all who wait for a slot.
-- @include report
local S, status = open()
if not S then return { ARGV[1], status } end
for i = 3, #ARGV, 2 do
  if ARGV[i] == 'bound' then
    redis.call('SET', K.bound, ARGV[i + 1], 'KEEPTTL')
    S.bound = tonumber(ARGV[i + 1])
  else
    redis.call('HSET', K.meta, ARGV[i], ARGV[i + 1])
  end
end
commit(S, true, nil)
redis.call('PUBLISH', ARGV[2] .. DUE_CHANNEL, 'kick ' .. BASE)
S.is_booked = true
return answer(S, T.OK)
