#!lua flags=allow-oom
-- Finds, and on request mends, what a foreign client left behind that died in the middle of an operation.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] the name of the dead client ('?' for one that left no name); '' = only tell
-- Reply: echo, status, mended ('1' | '0'), producer taken, producer, consumer taken, consumer, count of findings,
--        findings, then the report if the queue stands. Status: OK, ROLE_IN_USE (somebody else holds it),
--        QUEUE_NOT_FOUND.
-- O(1). A role that is given back wakes those who wait for it.
-- @include report
-- @include removal
local dead = ARGV[3]
local findings, mended = {}, false
local function find(text) findings[#findings + 1] = text end

local exists = redis.call('EXISTS', K.bound) == 1
local is_leaving = not exists and (redis.call('EXISTS', K.deleting) == 1 or redis.call('EXISTS', K.closed) == 1)
if not exists and not is_leaving then return { ARGV[1], (absence()) } end

local before = {}
local is_others = false
for _, role in ipairs({ 'producer', 'consumer' }) do
  local taken, holder = not role_is_free(role), holder_of(role)
  before[#before + 1] = taken and '1' or '0'
  before[#before + 1] = holder
  if taken then
    local name = holder == '' and '?' or holder
    find('the ' .. role .. ' role is held by ' .. name)
    if dead ~= '' and dead ~= name then is_others = true end
  end
end
local function reply_with(status, list)
  local reply = { ARGV[1], status, mended and '1' or '0', before[1], before[2], before[3], before[4], #findings }
  for _, finding in ipairs(findings) do reply[#reply + 1] = finding end
  for _, value in ipairs(list) do reply[#reply + 1] = value end
  return reply
end

local names_one = false
for at = 1, 3, 2 do
  local name = before[at + 1] == '' and '?' or before[at + 1]
  if before[at] == '1' and name == dead then names_one = true end
end
if dead ~= '' and is_others and not names_one then return reply_with(T.ROLE_IN_USE, {}) end

if is_leaving then
  find('a deletion was begun and is not finished')
  if names_one or (dead ~= '' and not is_others) then
    remove_all_keys()
    mended = true
  end
  return reply_with(T.OK, {})
end

local S = open()
local uncounted_puts = S.seen_prod - S.prod
if before[1] == '1' and uncounted_puts > 0 then
  find(text_of(uncounted_puts) .. ' put was pushed and not counted')
end
local uncounted_gets = S.seen_cons - S.cons
if before[3] == '1' and uncounted_gets > 0 and not S.closed then
  find(text_of(uncounted_gets) .. ' message was taken and not counted')
end
if names_one then
  if before[1] == '1' and (before[2] == '' and '?' or before[2]) == dead then
    if uncounted_puts > 0 then
      local bytes = 0
      for _, element in ipairs(redis.call('LRANGE', K.q, 0, math.min(uncounted_puts, CHUNK) - 1)) do
        bytes = bytes + #element
      end
      redis.call('INCRBY', K.produced_messages, text_of(uncounted_puts))
      redis.call('INCRBY', K.produced_bytes, text_of(bytes))
    end
    redis.call('LPUSH', K.producer_free, '0')
    mended = true
  end
  if before[3] == '1' and (before[4] == '' and '?' or before[4]) == dead then
    if uncounted_gets > 0 and not S.closed then redis.call('INCRBY', K.consumed_messages, text_of(uncounted_gets)) end
    redis.call('LPUSH', K.consumer_free, '0')
    mended = true
  end
end
commit(S, false, nil)
S.is_booked = true
return reply_with(T.OK, report(S))
