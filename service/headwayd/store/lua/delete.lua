#!lua flags=allow-oom
-- Deletes a queue: first it stops to exist, then everybody who waits is woken, then, once no foreign client holds a role,
-- all keys go. Calling again resumes.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] '1': a deletion that a foreign client began may be resumed
-- Reply: echo, OK | QUEUE_NOT_FOUND; or echo, ROLE_IN_USE, role, holder.
-- O(1): what is large is freed in the background. Wakes all who wait: foreign clients by not_full and closed, ours by the
-- change of the keys they watch.
-- @include removal
local exists = redis.call('EXISTS', K.bound) == 1
local is_ours = redis.call('EXISTS', K.deleting) == 1
if not exists and not is_ours and redis.call('EXISTS', K.closed) == 0 then
  if redis.call('EXISTS', K.meta) == 1 then forget_own_keys() end
  return { ARGV[1], T.QUEUE_NOT_FOUND }
end
if exists then
  redis.call('DEL', K.bound)
  redis.call('SET', K.deleting, text_of(NOW))
  redis.call('LPUSH', K.closed, '0', '0')
  is_ours = true
end
if redis.call('EXISTS', K.not_full) == 0 then redis.call('LPUSH', K.not_full, '0') end
if redis.call('EXISTS', K.closed) == 0 then redis.call('LPUSH', K.closed, '0', '0') end
for _, role in ipairs({ 'producer', 'consumer' }) do
  if not role_is_free(role) and (is_ours or redis.call('EXISTS', K[role]) == 1) then
    return { ARGV[1], T.ROLE_IN_USE, role, holder_of(role) }
  end
end
remove_all_keys()
return { ARGV[1], T.OK }
