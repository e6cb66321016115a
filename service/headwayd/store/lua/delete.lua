#!lua flags=allow-oom
-- Deletes a queue: first it stops to exist, then everybody who waits is woken, then, once no foreign client holds a
-- role, all keys go. Calling again resumes.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] the generation that the step before told, whose deletion goes on; '' = it begins, whichever queue there is
-- Reply: echo, OK | QUEUE_NOT_FOUND; or echo, ROLE_IN_USE, role, holder, generation. A deletion that goes on and finds its
--        queue no more, or another of its name, is done: OK.
-- O(1): what is large is freed in the background. Wakes all who wait: foreign clients by not_full and closed, ours by
-- the change of the keys they watch.
-- @include removal
refuse_unread()
local stands = redis.call('EXISTS', K.bound) == 1
-- That outlives the bound. A queue that Headway never worked on has none; nor has any of its name, until it does.
local generation = redis.call('HGET', K.meta, 'gen') or '-'
if ARGV[3] ~= '' and (stands or generation ~= ARGV[3]) then return { ARGV[1], T.OK } end
if stands then
  redis.call('DEL', K.bound)
  redis.call('SET', K.deleting, OURS)
  redis.call('LPUSH', K.closed, '0', '0')
elseif redis.call('EXISTS', K.deleting) == 0 and redis.call('EXISTS', K.closed) == 0 then
  if redis.call('EXISTS', K.meta) == 1 then forget_own_keys() end
  return { ARGV[1], ARGV[3] == '' and T.QUEUE_NOT_FOUND or T.OK }
end
if redis.call('GET', K.deleting) == OURS then
  if redis.call('EXISTS', K.not_full) == 0 then redis.call('LPUSH', K.not_full, '0') end
  if redis.call('EXISTS', K.closed) == 0 then redis.call('LPUSH', K.closed, '0', '0') end
end
local role = deletion_obstacle()
if role then return { ARGV[1], T.ROLE_IN_USE, role, holder_of(role), generation } end
remove_all_keys()
return { ARGV[1], T.OK }
