#!lua flags=allow-oom
-- Somebody leaves a line.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] waiter; ARGV[4] 'producers' | 'consumers' |
-- 'place': of the consumer line, and what its stream has leased stays leased
-- Reply: echo, OK, '1' if its stream still has leases (see find_absent); or why there is no queue.
-- What a consumer's stream has leased should be released before.
-- O(log n). Calls the next in line if there is something to come for.
-- @include stands
local S, status = open()
if not S then return { ARGV[1], status } end
local owning = '0'
if ARGV[4] == 'consumers' then
  owning = end_waiter(ARGV[3])
elseif ARGV[4] == 'place' then
  redis.call('ZREM', K.consumers, ARGV[3])
else
  leave_producers(ARGV[3])
end
commit(S, false, nil)
return { ARGV[1], T.OK, owning }
