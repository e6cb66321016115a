#!lua
-- Makes a queue, or tells about the one that stands.
-- KEYS[1]  base key
-- ARGV[1]  16 hex digits, fresh for every call: echoed first in the reply, the generation of a new life
-- ARGV[2]  prefix of all channels
-- ARGV[3…] name and value of each policy field
-- Reply: echo, OK (made) | QUEUE_EXISTS (it stood already), then the report; or echo, QUEUE_DELETED, role, holder.
-- O(1). Wakes nobody: nobody can wait on a queue that is not there.
-- @include report
-- @include removal
local S = load()
if S then
  S = open()
  commit(S, false, nil)
  S.is_booked = true
  return answer(S, T.QUEUE_EXISTS)
end
local role = deletion_obstacle()
if role then return { ARGV[1], T.QUEUE_DELETED, role, holder_of(role) } end
remove_all_keys()
local fields = first_fields(ARGV[1])
for i = 3, #ARGV, 2 do
  if ARGV[i] == 'bound' then
    redis.call('SET', K.bound, ARGV[i + 1])
  else
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = ARGV[i + 1]
  end
end
redis.call('PEXPIREAT', K.bound, LIFE_MARK_AT)
redis.call('LPUSH', K.producer_free, '0')
redis.call('LPUSH', K.consumer_free, '0')
redis.call('LPUSH', K.not_full, '0')
redis.call('HSET', K.meta, unpack(fields))
redis.call('HSET', K.meta, 'born', text_of(NOW))
S = load()
S.is_booked = true
return answer(S, T.OK)
