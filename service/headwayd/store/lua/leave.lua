#!lua flags=allow-oom
-- A producer leaves the line.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] waiter
-- Reply: echo, OK, or why there is no queue.
-- O(log n). Wakes the next producer in line if there is room.
-- @include queue
local S, status = open()
if not S then return { ARGV[1], status } end
redis.call('ZREM', K.producers, ARGV[3])
commit(S, false, nil)
return { ARGV[1], T.OK }
