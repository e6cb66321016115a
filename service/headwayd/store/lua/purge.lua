#!lua flags=allow-oom
-- Removes messages that wait, are delayed, or are dead: one bounded step.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] which: 'waiting' | 'delayed' | 'dead'; ARGV[4] most messages of this step
-- ARGV[5] the generation that the step before told; '' = it is the first, of whichever queue there is
-- Reply: echo, OK, removed, generation, and how many waited, were delayed and were dead before it; or echo, ROLE_IN_USE,
--        'consumer', holder; or why there is no queue.
-- O(k log n). Room in the line wakes the first waiting producer.
-- @include line
keep_keys()
local S, status = open_life(ARGV[5])
if not S then return { ARGV[1], status } end
local most, removed = tonumber(ARGV[4]), 0
local waiting, delayed, dead = S.len, redis.call('ZCARD', K.delayed), redis.call('ZCARD', K.dead)
if ARGV[3] == 'waiting' then
  if waiting > 0 and not role_is_free('consumer') then
    commit(S, false, nil)
    return { ARGV[1], T.ROLE_IN_USE, 'consumer', holder_of('consumer') }
  end
  local tickets, elements = {}, {}
  local part = waiting > 0 and redis.call('RPOP', K.q, most) or {}
  local passed = walk(S, #part, function(i, ticket)
    tickets[#tickets + 1], elements[#elements + 1] = ticket, part[i]
  end)
  take_walked(S, passed)
  removed = #tickets
  local sides = fields_of(K.side, tickets)
  for i, ticket in ipairs(tickets) do
    finish(S, ticket, sides[i] and unpack_record(sides[i]) or nil, elements[i], MARK.WITHDRAWN, '')
  end
  remove_fields(K.side, tickets)
  if S.expiring == 1 then remove_members(K.expiry, tickets) end
  S.size, S.len = S.size - #part, S.len - removed
  time_of(S, S.head + 1)
elseif ARGV[3] == 'delayed' then
  local seqs = redis.call('ZRANGE', K.delayed, 0, most - 1)
  local elements, records = take_delayed(S, seqs)
  removed = #seqs
  for i, seq in ipairs(seqs) do finish(S, 'd' .. seq, records[i], elements[i], MARK.WITHDRAWN, '') end
else
  local refs = redis.call('ZRANGE', K.dead, 0, most - 1)
  removed = #refs
  for i, corpse in ipairs(fields_of(K.corpse, refs)) do
    local record, element = unpack_corpse(corpse)
    finish(S, refs[i], record, element, MARK.WITHDRAWN, '')
  end
  remove_members(K.dead, refs)
  remove_fields(K.corpse, refs)
end
if removed > 0 then add(S, 'n_withdrawn', removed) end
commit(S, ARGV[3] == 'waiting' and removed > 0, nil)
return { ARGV[1], T.OK, removed, S.gen, waiting, delayed, dead }
