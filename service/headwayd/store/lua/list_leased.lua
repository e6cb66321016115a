#!lua flags=no-writes
-- Lists leased messages, those first whose lease ends first.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused); ARGV[3] most messages
-- Reply: echo, OK, generation, then for each message: ticket, failures, put at, made id, deadline, leased at ('0' =
--        unknown), consumer's name, progress, id that was given ('' = none); or why there is no queue.
-- O(k + bytes of their elements).
-- @include report
keep_keys()
local S = load()
if not S then return { ARGV[1], why_absent() } end
local reply = { ARGV[1], T.OK, S.gen }
if S.is_new then return reply end
local most, entries = tonumber(ARGV[3]), {}
local leases = redis.call('ZRANGE', K.leases, 0, most - 1, 'WITHSCORES')
for i = 1, #leases, 2 do
  entries[#entries + 1] = { ticket = leases[i], deadline = tonumber(leases[i + 1]) }
end
local steps, bundled = S.n_bundled > 0 and redis.call('ZRANGE', K.bundle_at, 0, most - 1, 'WITHSCORES') or {}, 0
for i = 1, #steps, 2 do
  if bundled >= most then break end
  local bundle = read_bundle(S, steps[i])
  local elements = elements_of(bundle)
  each_of_bundle(bundle, function(at, ticket, packed)
    if bundled >= most then return end
    bundled = bundled + 1
    entries[#entries + 1] = { ticket = ticket, deadline = tonumber(steps[i + 1]), packed = packed,
                              element = elements[at] }
  end)
end
table.sort(entries, function(a, b)
  if a.deadline ~= b.deadline then return a.deadline < b.deadline end
  return tonumber(a.ticket) < tonumber(b.ticket)
end)
for i = 1, math.min(most, #entries) do
  local entry = entries[i]
  local ticket = entry.ticket
  local record = unpack_record(entry.packed or redis.call('HGET', K.lease, ticket))
  local held_at, consumer = 0, ''
  if record.holder then held_at, consumer = struct.unpack('>I8', record.holder), string.sub(record.holder, 10) end
  local id, framed_at = id_of(entry.element or redis.call('HGET', K.body, ticket))
  local progress = redis.call('HGET', K.progress, ticket) or ''
  for _, value in ipairs({ ticket, record.failures, text_of(framed_at > 0 and framed_at or record.put_at), record.id,
                           text_of(entry.deadline), text_of(held_at), consumer, progress, id }) do
    reply[#reply + 1] = value
  end
end
return reply
