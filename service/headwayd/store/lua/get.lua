#!lua flags=allow-oom
-- Acks earlier leases, then leases messages from the head.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] consumer's name
-- ARGV[4] most messages
-- ARGV[5] lease (ms); '0' = the queue's policy
-- ARGV[6] random part of the new leases' nonces, 16 bytes
-- ARGV[7] most bytes of elements in the reply; one message is always given
-- ARGV[8] '1': others wait before this call, so lease only if it ends a lease of its own (a holder keeps its turn)
-- ARGV[9] count of leases to ack, then for each: generation, ticket, nonce
-- Reply: echo, status, now, generation, wait ('' | 'empty' | 'drain' | 'slot' |
--        'role' | 'paused'), holder, deadline, next due,
--        count of settled, then status and failures for each, then for each message: ticket, attempt, put at, made id,
--        element. Status: OK, QUEUE_DRAINED, or why there is no queue.
-- O(k log n). Room in the line wakes the first waiting producer; a free slot wakes by the leases' change.
-- @include due
-- @include settle
local CHUNK_OUT = 64
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local settled = {}
local acks, ended = tonumber(ARGV[9]), 0
if acks > 0 then ended = ack_leases(S, 10, acks, settled) end

local leased = redis.call('ZCARD', K.leases)
local limit = policy_of(S, 'limit')
local slots = limit == 0 and math.huge or math.max(0, limit - leased)
local wait, holder = '', ''
if S.closed and S.len == 0 and leased == 0 and redis.call('EXISTS', K.delayed) == 0 then
  status = T.QUEUE_DRAINED
elseif S.paused == 1 then
  wait = 'paused'
elseif not role_is_free('consumer') then
  wait, holder = 'role', holder_of('consumer')
elseif S.len == 0 or (ARGV[8] == '1' and ended == 0) then
  wait = S.closed and 'drain' or 'empty'
elseif slots == 0 then
  wait = 'slot'
end
status = status or T.OK

local taken = {}
if status == T.OK and wait == '' then
  local want, bytes, most_bytes = math.min(tonumber(ARGV[4]), slots, S.len), 0, tonumber(ARGV[7])
  local is_cut = false
  while #taken < want and not is_cut do
    local part = redis.call('RPOP', K.q, math.min(want - #taken, CHUNK_OUT))
    for i, element in ipairs(part) do
      bytes = bytes + #element
      if bytes > most_bytes and #taken > 0 then
        local back = {}
        for at = #part, i, -1 do back[#back + 1] = part[at] end
        push_head(back)
        is_cut = true
        break
      end
      taken[#taken + 1] = element
    end
  end
end

local deadline = 0
local deliveries = {}
if #taken > 0 then
  local lease_ms = tonumber(ARGV[5])
  if lease_ms == 0 then lease_ms = policy_of(S, 'lease_ms') end
  deadline = S.now + lease_ms
  local tickets = {}
  local from_returned = math.min(S.returned, #taken)
  if from_returned > 0 then
    tickets = redis.call('ZRANGE', K.returned, 0, from_returned - 1)
    redis.call('ZREMRANGEBYRANK', K.returned, 0, from_returned - 1)
    S.returned = S.returned - from_returned
  end
  for i = from_returned + 1, #taken do tickets[i] = text_of(S.head + i - from_returned) end
  S.len = S.len - #taken
  local sides = {}
  if redis.call('EXISTS', K.side) == 1 then
    each_chunk(tickets, CHUNK, function(part)
      for _, side in ipairs(redis.call('HMGET', K.side, unpack(part))) do sides[#sides + 1] = side end
    end)
    remove_fields(K.side, tickets)
  end
  local leases, records, bodies, counted, counted_bytes = {}, {}, {}, 0, 0
  for i, element in ipairs(taken) do
    local ticket = tickets[i]
    local record
    if sides[i] then
      record = unpack_record(sides[i])
    else
      local _, put_at = id_of(element)
      if put_at == 0 then put_at = time_of(S, tonumber(ticket)) end
      record = new_record(put_at)
    end
    record.nonce = ARGV[6] .. struct.pack('>I4', record.failures + 1)
    record.flags = without_flag(record.flags, FLAG.LAPSED)
    if not has_flag(record.flags, FLAG.COUNTED) then
      record.flags = with_flag(record.flags, FLAG.COUNTED)
      counted, counted_bytes = counted + 1, counted_bytes + #element
    end
    leases[2 * i - 1], leases[2 * i] = text_of(deadline), ticket
    records[2 * i - 1], records[2 * i] = ticket, pack_record(record)
    bodies[2 * i - 1], bodies[2 * i] = ticket, element
    local at = 5 * (i - 1)
    deliveries[at + 1], deliveries[at + 2], deliveries[at + 3] = ticket, record.failures + 1, text_of(record.put_at)
    deliveries[at + 4], deliveries[at + 5] = record.id, element
  end
  if #taken > from_returned then add(S, 'head', #taken - from_returned) end
  add_members(K.leases, leases)
  set_fields(K.lease, records)
  set_fields(K.body, bodies)
  redis.call('SET', K.consumer, ARGV[3])
  if counted > 0 then
    redis.call('INCRBY', K.consumed_messages, counted)
    redis.call('INCRBY', K.consumed_bytes, counted_bytes)
    add(S, 'seen_cons', counted)
  end
end

local due = commit(S, #taken > 0 or S.made_room, nil)
local reply = { ARGV[1], status, text_of(S.now), S.gen, wait, holder, text_of(deadline), text_of(due), acks }
for i = 1, acks do
  reply[#reply + 1] = settled[i][1]
  reply[#reply + 1] = settled[i][2]
end
for _, value in ipairs(deliveries) do reply[#reply + 1] = value end
return reply
