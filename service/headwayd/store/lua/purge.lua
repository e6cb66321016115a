#!lua flags=allow-oom
-- Removes messages that wait, are delayed, or are dead: one bounded step.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] which: 'waiting' | 'delayed' | 'dead'; ARGV[4] most messages of this step
-- Reply: echo, OK, removed; or echo, ROLE_IN_USE, 'consumer', holder; or why there is no queue.
-- O(k log n). Room in the line wakes the first waiting producer.
-- @include line
local S, status = open()
if not S then return { ARGV[1], status } end
local most, removed = tonumber(ARGV[4]), 0
if ARGV[3] == 'waiting' then
  if not role_is_free('consumer') then
    commit(S, false, nil)
    return { ARGV[1], T.ROLE_IN_USE, 'consumer', holder_of('consumer') }
  end
  local elements = S.len > 0 and redis.call('RPOP', K.q, most) or {}
  removed = #elements
  for _, element in ipairs(elements) do finish_id(S, (id_of(element))) end
  S.pops = removed
  S.len = S.len - removed
  book_pops(S)
else
  local set_key = ARGV[3] == 'delayed' and K.delayed or K.dead
  local body_key = ARGV[3] == 'delayed' and K.later or K.corpse
  local members = redis.call('ZRANGE', set_key, 0, most - 1)
  removed = #members
  if removed > 0 then
    for _, both in ipairs(redis.call('HMGET', body_key, unpack(members))) do
      local _, element = unpack_both(both)
      finish_id(S, (id_of(element)))
    end
    remove_members(set_key, members)
    remove_fields(body_key, members)
  end
end
if removed > 0 then add(S, 'n_withdrawn', removed) end
commit(S, removed > 0, nil)
return { ARGV[1], T.OK, removed }
