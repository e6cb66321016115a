#!lua flags=no-writes
-- Counts the dead up to a number.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused); ARGV[3] number, or '+inf'
-- Reply: echo, OK, how many, the last number there is ('0' = none ever), generation ('' = no step has
--        seen this queue yet); or why there is no queue.
-- O(log n).
-- @include queue
local S = load()
if not S then return { ARGV[1], why_absent() } end
if S.is_new then return { ARGV[1], T.OK, 0, '0', '' } end
return { ARGV[1], T.OK, redis.call('ZCOUNT', K.dead, '-inf', ARGV[3]), text_of(S.died), S.gen }
