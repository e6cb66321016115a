#!lua flags=no-writes
-- Everything about a queue, as of one instant; what foreign clients did is worked out but not booked.
-- KEYS[1] base key; ARGV[1] echo
-- Reply: echo, OK, report; or echo, QUEUE_NOT_FOUND | QUEUE_DELETED.
-- O(1).
-- @include report
local S = load()
if not S then return { ARGV[1], why_absent() } end
return answer(S, T.OK)
