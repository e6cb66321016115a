#!lua flags=no-writes
-- Lists dead messages in the order they died.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused)
-- ARGV[3] the number of the last one known, 0 = none; ARGV[4] most messages; ARGV[5] most bytes of elements
-- ARGV[6] the number not to go beyond, '+inf' = none; ARGV[7…] names: then only these, in this order
-- Reply: echo, OK, generation ('' = no step has seen this queue yet), '1' if there are more, then for each: number ('0' = the name is not dead), reference,
--        died at, cause, made id, record and element; or why there is no queue.
-- O(k log n).
-- @include line
-- @include report
keep_keys()
local S = load()
if not S then return { ARGV[1], why_absent() } end
local reply = { ARGV[1], T.OK, S.is_new and '' or S.gen, '0' }
if S.is_new then
  for _ = 7, #ARGV do
    for _, value in ipairs({ '0', '', '0', '', '', '' }) do reply[#reply + 1] = value end
  end
  return reply
end
local most, most_bytes, bytes, given = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0

local function show(ref, number)
  local corpse = redis.call('HGET', K.corpse, ref)
  bytes = bytes + #corpse
  if given == most or (given > 0 and bytes > most_bytes) then
    reply[4] = '1'
    return false
  end
  local record, element, cause, died_at = unpack_corpse(corpse)
  keep_made_id(S, ref, element, record)
  for _, value in ipairs({ number, ref, text_of(died_at), cause, record.id, pack_both(record, element) }) do
    reply[#reply + 1] = value
  end
  given = given + 1
  return true
end

if #ARGV >= 7 then
  for i = 7, #ARGV do
    local state, ref = find_name(S, ARGV[i])
    if state == 'x' then
      if not show(ref, redis.call('ZSCORE', K.dead, ref)) then return reply end
    else
      for _, value in ipairs({ '0', '', '0', '', '', '' }) do reply[#reply + 1] = value end
    end
  end
  return reply
end
local found = redis.call('ZRANGEBYSCORE', K.dead, '(' .. ARGV[3], ARGV[6], 'WITHSCORES', 'LIMIT', 0, most + 1)
for i = 1, #found, 2 do
  if not show(found[i], found[i + 1]) then return reply end
end
return reply
