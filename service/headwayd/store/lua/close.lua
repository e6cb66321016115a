#!lua flags=allow-oom
-- Closes a queue for good.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] name of who closes
-- ARGV[4] the generation that the step before told; '' = it is the first, of whichever queue there is
-- Reply: echo, OK, report; or echo, QUEUE_CLOSED; or echo, ROLE_IN_USE, 'producer', holder, generation; or why there is
--        no queue.
-- O(1). Wakes all: foreign consumers by the closed list, ours by its change.
-- @include report
local S, status = open_life(ARGV[4])
if not S then return { ARGV[1], status } end
if S.closed then
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_CLOSED }
end
if not role_is_free('producer') then
  commit(S, false, nil)
  return { ARGV[1], T.ROLE_IN_USE, 'producer', holder_of('producer'), S.gen }
end
redis.call('SET', K.producer, ARGV[3])
S.extras = 1
redis.call('LPUSH', K.closed, '0', '0')
S.closed = true
commit(S, false, nil)
S.is_booked = true
return answer(S, T.OK)
