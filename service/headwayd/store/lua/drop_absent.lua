#!lua flags=allow-oom
-- Drops those from both lines whose process is gone.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3…] names of processes that are taken for present, though nobody may hear them now
-- Reply: echo, OK, now, next due, '1' if streams of those who are gone own leases (see find_absent); or why there is no
--        queue.
-- O(length of the lines + streams that own leases). Calls the next producer and consumers.
-- @include due
-- @include stands
keep_keys()
local S, status = open()
if not S then return { ARGV[1], status } end
local is_gone = absence_of_all_but(S, 3, #ARGV)
do_what_is_due(S)
walk_consumers(S, nil, false, math.huge, function() return false end)
for _, waiter in ipairs(redis.call('ZRANGE', K.producers, 0, -1)) do
  if is_gone(waiter) then leave_producers(waiter) end
end
local owning = '0'
for _, waiter in ipairs(redis.call('HKEYS', K.held)) do
  if is_gone(waiter) then
    owning = '1'
    break
  end
end
for _, waiter in ipairs(redis.call('HKEYS', K.turns)) do
  if is_gone(waiter) then redis.call('HDEL', K.turns, waiter) end
end
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due), owning }
