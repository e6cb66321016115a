#!lua flags=no-writes
-- Looks at waiting messages.
-- KEYS[1] base key; ARGV[1] echo
-- ARGV[2] prefix of all channels (unused); ARGV[3] first position, from 1; ARGV[4] most messages
-- ARGV[5] most bytes of elements and last errors in the reply; one message is always given
-- Reply: echo, OK, generation ('' = no step has seen this queue yet), then for each message: ticket, position, failures,
--        put at, made id, last error, element; or why there is no queue.
-- O(k log n + first position).
-- @include report
local CHUNK_OUT = 64
keep_keys()
local S = load()
if not S then return { ARGV[1], why_absent() } end
local from, most, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not S.is_new then look_past(S) end

-- Places as they are after the pops of foreign clients; elements of holes are passed over.
local returned, alive = S.returned - (S.skipped or 0), returned_alive(S)
local function is_hole(ticket) return S.n_holes > 0 and redis.call('ZSCORE', K.holes, ticket) end

-- Where a look is: the next returned to look at, or the next ticket; and its index in the list.
local returned_at, ticket_at, index

-- Goes on with the message at this position, over whatever holes stand before it. O(log n) looks.
local function go_to(position)
  if position <= alive then
    returned_at, ticket_at = rank_of(S, position), S.head + 1
    index = returned_at
  else
    returned_at, ticket_at = returned, fresh_ticket(S, position - alive - 1)
    index = fresh_index(S, ticket_at)
  end
end

-- The ticket of the next element of the list, and whether it is a hole.
local function next_element()
  if returned_at < returned then
    local ticket = redis.call('ZRANGE', K.returned, (S.skipped or 0) + returned_at, (S.skipped or 0) + returned_at)[1]
    returned_at = returned_at + 1
    return ticket, is_hole(ticket)
  end
  local first = ticket_at
  while true do
    if ticket_at == first + CHUNK_OUT then ticket_at = fresh_ticket(S, index - returned, true) end
    local ticket = text_of(ticket_at)
    ticket_at = ticket_at + 1
    if S.n_gaps == 0 or not redis.call('ZSCORE', K.gaps, ticket) then return ticket, false end
    if is_hole(ticket) then return ticket, true end
  end
end

local position, last, given_before = from, math.min(S.len, from + most - 1), 0
local reply, bytes, given = { ARGV[1], T.OK, S.is_new and '' or S.gen }, 0, 0
while position <= last do
  if given == given_before then go_to(position) end   -- at first, and behind nothing but holes
  given_before = given
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
      local put_at = record.put_at
      if not side then put_at = S.is_new and select(2, id_of(element)) or put_at_of(S, ticket, element) end
      for _, value in ipairs({ ticket, position, record.failures, text_of(put_at), record.id, record.error, element }) do
        reply[#reply + 1] = value
      end
      given, position = given + 1, position + 1
    end
  end
end
return reply
