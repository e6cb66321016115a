#!lua flags=no-writes
-- Looks at waiting messages.
-- KEYS[1] base key; ARGV[1] echo
-- ARGV[2] prefix of all channels (unused); ARGV[3] first position, from 1; ARGV[4] most messages
-- ARGV[5] most bytes of elements and last errors in the reply; one message is always given
-- Reply: echo, OK, generation ('' = no step has seen this queue yet), then for each message: ticket, position, failures,
--        put at, made id, last error, element; or why there is no queue.
-- O(k + first position).
-- @include report
local CHUNK_OUT = 64
keep_keys()
local S = load()
if not S then return { ARGV[1], why_absent() } end
local from, most, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local passed = S.passed and S.passed.holes or 0
if not S.is_new then look_past(S) end

-- Places as they are after the pops of foreign clients; elements of holes are passed over.
local returned = S.returned - (S.skipped or 0)
local returned_alive = returned
if S.n_holes > 0 then
  returned_alive = returned - (redis.call('ZCOUNT', K.holes, '-inf', text_of(S.head)) - passed)
end
local function is_hole(ticket) return S.n_holes > 0 and redis.call('ZSCORE', K.holes, ticket) end

-- The first ticket behind the head with this many waiting before it there.
local function fresh_ticket(before)
  local low, high = S.head + 1, S.tail + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local waiting = middle - S.head - redis.call('ZCOUNT', K.gaps, '(' .. text_of(S.head), text_of(middle))
    if waiting > before then high = middle else low = middle + 1 end
  end
  return low
end

-- Where the look begins: the next returned to look at, or the next ticket; and its index in the list.
local returned_at, ticket_at, index = 0, nil, 0
local position = 1
if from <= returned_alive then
  while position < from do   -- holes among the returned are rare, so are many returned
    local next_one = redis.call('ZRANGE', K.returned, (S.skipped or 0) + returned_at, (S.skipped or 0) + returned_at)[1]
    if not is_hole(next_one) then position = position + 1 end
    returned_at = returned_at + 1
    if S.n_holes == 0 then
      returned_at, position = from - 1, from
    end
  end
  index = returned_at
  ticket_at = S.head + 1
else
  returned_at, position = returned, from
  local before = from - returned_alive - 1
  ticket_at = S.n_gaps > 0 and fresh_ticket(before) or S.head + 1 + before
  index = returned + ticket_at - S.head - 1
  if S.n_gaps > 0 then index = index - redis.call('ZCOUNT', K.gaps, '(' .. text_of(S.head), '(' .. text_of(ticket_at)) end
  if S.n_holes > 0 then index = index + redis.call('ZCOUNT', K.holes, '(' .. text_of(S.head), '(' .. text_of(ticket_at)) end
end

-- The ticket of the next element of the list, and whether it is a hole.
local function next_element()
  if returned_at < returned then
    local ticket = redis.call('ZRANGE', K.returned, (S.skipped or 0) + returned_at, (S.skipped or 0) + returned_at)[1]
    returned_at = returned_at + 1
    return ticket, is_hole(ticket)
  end
  while true do
    local ticket = text_of(ticket_at)
    ticket_at = ticket_at + 1
    if S.n_gaps == 0 or not redis.call('ZSCORE', K.gaps, ticket) then return ticket, false end
    if is_hole(ticket) then return ticket, true end
  end
end

local last = math.min(S.len, from + most - 1)
local reply, bytes, given = { ARGV[1], T.OK, S.is_new and '' or S.gen }, 0, 0
while position <= last do
  local part = redis.call('LRANGE', K.q, -(index + CHUNK_OUT), -(index + 1))
  for i = #part, 1, -1 do
    local ticket, is_gone = next_element()
    index = index + 1
    if not is_gone then
      local element = part[i]
      if position > last then return reply end
      local side = not S.is_new and redis.call('HGET', K.side, ticket)
      local record = side and unpack_record(side) or new_record(0)
      bytes = bytes + #element + #record.error
      if bytes > most_bytes and given > 0 then return reply end
      local _, framed_at = id_of(element)
      local put_at = record.put_at
      if not side then put_at = framed_at > 0 and framed_at or S.is_new and 0 or put_time(S, tonumber(ticket)) end
      for _, value in ipairs({ ticket, position, record.failures, text_of(put_at), record.id, record.error, element }) do
        reply[#reply + 1] = value
      end
      given, position = given + 1, position + 1
    end
  end
end
return reply
