#!lua flags=allow-oom
-- Drops those from both lines whose process is gone, and gives back, at no attempt's cost, what its streams owned.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3…] names of processes that are taken for present, though nobody may hear them now
-- Reply: echo, OK, now, next due; or why there is no queue.
-- O(length of the lines + steps of streams; all leases, if some go back). Calls the next producer and consumers.
-- @include due
-- @include stands
keep_keys()
local S, status = open()
if not S then return { ARGV[1], status } end
S.present = {}
for i = 3, #ARGV do S.present[ARGV[i]] = true end
do_what_is_due(S)
walk_consumers(S, nil, false, function() return false end)
local function is_gone(waiter) return not is_heard(S, process_of(waiter)) end
release_owned(S, is_gone)
for _, waiter in ipairs(redis.call('ZRANGE', K.producers, 0, -1)) do
  if is_gone(waiter) then leave_producers(waiter) end
end
for _, waiter in ipairs(redis.call('HKEYS', K.turns)) do
  if is_gone(waiter) then redis.call('HDEL', K.turns, waiter) end
end
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due) }
