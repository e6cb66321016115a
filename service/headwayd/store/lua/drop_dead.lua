#!lua flags=allow-oom
-- Removes dead messages that are safe in another queue.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] generation; ARGV[4…] reference and number of
-- each
-- Reply: echo, OK, removed; or why there is no queue. Those of another life, or that died anew meanwhile, stay.
-- O(k log n). Wakes nobody.
-- @include line
keep_keys()
local S, status = open()
if not S then return { ARGV[1], status } end
local removed = 0
if S.gen == ARGV[3] then
  for i = 4, #ARGV, 2 do
    local ref = ARGV[i]
    if redis.call('ZSCORE', K.dead, ref) == ARGV[i + 1] then
      local record, element = unpack_corpse(redis.call('HGET', K.corpse, ref))
      finish(S, ref, record, element, MARK.MOVED, '')
      redis.call('ZREM', K.dead, ref)
      redis.call('HDEL', K.corpse, ref)
      removed = removed + 1
    end
  end
end
if removed > 0 then add(S, 'n_withdrawn', removed) end
commit(S, false, nil)
return { ARGV[1], T.OK, removed }
