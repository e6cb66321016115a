#!lua flags=no-writes
-- Everything about a queue, as of one instant; what foreign clients did is worked out but not booked.
-- KEYS[1] base key; ARGV[1] echo
-- Reply: echo, OK, report; or echo, QUEUE_NOT_FOUND | QUEUE_DELETED.
-- O(1).
-- @include report
local S = load()
if not S then
  local is_leaving = redis.call('EXISTS', K.deleting) == 1 or redis.call('EXISTS', K.closed) == 1
  return { ARGV[1], is_leaving and T.QUEUE_DELETED or T.QUEUE_NOT_FOUND }
end
return answer(S, T.OK)
