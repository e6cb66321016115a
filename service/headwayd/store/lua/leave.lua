#!lua flags=allow-oom
-- Somebody leaves a line.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] waiter; ARGV[4] 'producers' | 'consumers'
-- Reply: echo, OK, or why there is no queue.
-- What a consumer's stream has leased must be released besides.
-- O(log n). Calls the next in line if there is something to come for.
-- @include kept
local S, status = open()
if not S then return { ARGV[1], status } end
redis.call('ZREM', K[ARGV[4]], ARGV[3])
if ARGV[4] == 'consumers' then forget_holder(ARGV[3]) end
commit(S, false, nil)
return { ARGV[1], T.OK }
