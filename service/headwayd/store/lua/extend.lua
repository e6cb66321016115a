#!lua flags=allow-oom
-- Keeps leases alive from now on; takes up again those that lapsed and that nobody took, if there is a slot and it is
-- sure where they stand.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] lease (ms); '0' = the queue's policy
-- ARGV[4] how far the work has come (0 to 1), '' = nothing told; ARGV[5] a note
-- ARGV[6] waiter whose stream owns what is taken up again; '' = none
-- ARGV[7] count, then the leases (see include/settle)
-- Reply: echo, OK, now, next due, deadline, then status and failures for each; or why there is no queue.
-- O(k log n). Wakes nobody.
-- @include due
-- @include settle
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local lease_ms = tonumber(ARGV[3])
if lease_ms == 0 then lease_ms = math.min(policy_of(S, 'lease_ms'), MAX_LEASE_MS) end
local deadline = S.now + lease_ms
local limit = policy_of(S, 'limit')
local results = {}
local function note_progress(ticket)
  if ARGV[4] == '' then return end
  S.extras = 1
  redis.call('HSET', K.progress, ticket, ARGV[4] .. ' ' .. ARGV[5])
  tell(S, 'P', ticket, ARGV[4] .. ' ' .. ARGV[5])
end
each_lease(S, 8, tonumber(ARGV[7]), function(i, ticket, packed)
  local record = unpack_record(packed)
  redis.call('ZADD', K.leases, deadline, ticket)
  note_progress(ticket)
  results[i] = { T.EXTENDED, record.failures }
end, function(i, ticket, outcome)
  if outcome == T.LAPSED and (limit == 0 or leased_count(S) < limit) and not is_unsure(S) then
    local element, record = take_one(S, ticket)
    record.failures = record.failures - 1
    record.flags = with_flag(without_flag(record.flags, FLAG.LAPSED), FLAG.RETAKEN)
    local packed = pack_leased(record, pack_holder(S.now, ''))
    if ARGV[6] ~= '' then own_leases(ARGV[6], owned_as(packed, ticket), 1, false) end
    redis.call('HSET', K.lease, ticket, packed)
    redis.call('HSET', K.body, ticket, element)
    redis.call('ZADD', K.leases, deadline, ticket)
    tell(S, 'L', ticket, record.failures + 1)
    note_progress(ticket)
    results[i] = { T.EXTENDED, record.failures }
  else
    if outcome == T.LAPSED or outcome == T.DEAD then outcome = T.STALE end
    if outcome == T.ALREADY_ACKED then outcome = T.GONE end
    results[i] = { outcome, 0 }
  end
end)
local due = commit(S, false, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(due), text_of(deadline) }
for _, result in ipairs(results) do
  reply[#reply + 1] = result[1]
  reply[#reply + 1] = result[2]
end
return reply
