#!lua flags=no-writes
-- Looks at waiting messages.
-- KEYS[1] base key; ARGV[1] echo
-- ARGV[2] prefix of all channels (unused); ARGV[3] first position, from 1; ARGV[4] most messages
-- ARGV[5] most bytes of elements in the reply; one message is always given
-- Reply: echo, OK, generation, then for each message: ticket, position, failures, put at, made id, last error, element;
--        or why there is no queue.
-- O(k + first position).
-- @include line
local CHUNK_OUT, TIMES_MOST = 64, 5000
local S = load()
if not S then
  local is_leaving = redis.call('EXISTS', K.deleting) == 1 or redis.call('EXISTS', K.closed) == 1
  return { ARGV[1], is_leaving and T.QUEUE_DELETED or T.QUEUE_NOT_FOUND }
end
local from, most, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local skipped = math.min(S.pops, S.returned)
local returned, head = S.returned - skipped, S.head + S.pops - skipped
local last = math.min(S.len, from + most - 1)
local times, time_at = S.is_new and {} or redis.call('LRANGE', K.times, 0, TIMES_MOST - 1), 0
local function put_time(ticket)
  while times[time_at + 1] and tonumber(string.match(times[time_at + 1], '^%d+')) <= ticket do time_at = time_at + 1 end
  return time_at > 0 and string.match(times[time_at], '%d+$') or '0'
end
local reply, bytes, position = { ARGV[1], T.OK, S.gen }, 0, from
while position <= last do
  local to = math.min(last, position + CHUNK_OUT - 1)
  local part = redis.call('LRANGE', K.q, -to, -position)
  for i = #part, 1, -1 do
    local element = part[i]
    bytes = bytes + #element
    if bytes > most_bytes and position > from then return reply end
    local ticket
    if position <= returned then
      ticket = redis.call('ZRANGE', K.returned, skipped + position - 1, skipped + position - 1)[1]
    else
      ticket = text_of(head + position - returned)
    end
    local side = not S.is_new and redis.call('HGET', K.side, ticket)
    local record = side and unpack_record(side) or new_record(0)
    local _, framed_at = id_of(element)
    local put_at = side and text_of(record.put_at) or framed_at > 0 and text_of(framed_at) or put_time(tonumber(ticket))
    for _, value in ipairs({ ticket, position, record.failures, put_at, record.id, record.error, element }) do
      reply[#reply + 1] = value
    end
    position = position + 1
  end
end
return reply
