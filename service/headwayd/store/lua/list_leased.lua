#!lua flags=no-writes
-- Lists leased messages, those first whose lease ends first.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused); ARGV[3] most messages
-- Reply: echo, OK, generation, then for each message: ticket, failures, put at, made id, deadline, leased at ('0' =
--        unknown), consumer's name, progress, id that was given ('' = none); or why there is no queue.
-- O(k + bytes of their elements).
-- @include report
local S = load()
if not S then return { ARGV[1], why_absent() } end
local reply = { ARGV[1], T.OK, S.gen }
if S.is_new then return reply end
local leases = redis.call('ZRANGE', K.leases, 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
for i = 1, #leases, 2 do
  local ticket = leases[i]
  local record = unpack_record(redis.call('HGET', K.lease, ticket))
  local held_at, consumer = 0, ''
  if record.holder then held_at, consumer = struct.unpack('>I8', record.holder), string.sub(record.holder, 10) end
  local id, framed_at = id_of(redis.call('HGET', K.body, ticket))
  local progress = redis.call('HGET', K.progress, ticket) or ''
  for _, value in ipairs({ ticket, record.failures, text_of(framed_at > 0 and framed_at or record.put_at), record.id,
                           text_of(tonumber(leases[i + 1])), text_of(held_at), consumer, progress, id }) do
    reply[#reply + 1] = value
  end
end
return reply
