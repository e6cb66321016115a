#!lua flags=allow-oom
-- Stops handing out messages, or begins again.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] '1' pause, '0' resume
-- Reply: echo, OK, report; or echo and why there is no queue.
-- O(1). Resuming wakes all waiting consumers.
-- @include report
local S, status = open()
if not S then return { ARGV[1], status } end
set(S, 'paused', tonumber(ARGV[3]))
commit(S, false, nil)
if S.paused == 0 then redis.call('PUBLISH', ARGV[2] .. DUE_CHANNEL, 'kick ' .. BASE) end
S.is_booked = true
return answer(S, T.OK)
