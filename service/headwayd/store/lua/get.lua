#!lua flags=allow-oom
-- Acks earlier leases, then leases messages from the head; or gives the leases of the same attempt once more.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] consumer's name
-- ARGV[4] most messages; for several who ask, of the first. Behind it and a space may stand how many of these it may be
--         given beside one for each lease that it ends; an ack that comes late ends none
-- ARGV[5] lease (ms); '0' = the queue's policy, but at most the limit of leases
-- ARGV[6] random part of the new leases' nonces, 16 bytes; for several who ask as many for each, in order
-- ARGV[7] most bytes of elements in the reply; one message is always given, unless the number is negative: then what is
--         larger stays, and who asks does not stand in line for it
-- ARGV[8] 8 bytes of whoever asks, and the attempt id; '' = none
-- ARGV[9] waiter (process name, '#', number) that stands in the consumer line if it gets nothing; '' = does not wait
-- ARGV[10] the number in line that the waiter had before; '0' = none that it knows of
-- ARGV[11] a place kept between calls that the waiter comes back to; '' = none
-- ARGV[12] '1': the waiter's stream owns what it gets; '2': and when that is settled it goes on before all others; '' =
--        neither
-- ARGV[13] generation in which the waiter began to wait; '' = whichever it is
-- ARGV[14] count of others who ask in the same step, all for the same, with neither attempt nor place, and without a
--         stream that owns what they get; then waiter, number, most messages and count of leases to ack of each, in the
--         order in which they are served. Either none of all who ask has a number yet, or all have, and they are in the
--         order of these.
-- then count of leases to ack, and the leases (see include/settle), those of the first who asks first
-- Reply: echo, status, now, generation, wait ('' | 'empty' | 'large' | 'drain' | 'slot' | 'line' | 'role' | 'paused'),
--        holder, random part of the nonces, next due, number in line, position in line, length of the line, limit,
--        poll_base, poll_per_position and poll_max of the policy, '1' if a waiter stood no longer there, how many more
--        could be leased after what was given (1 if that was given before, and if nothing was because many that had
--        expired, or many waiters that are gone, stood before), how many messages are for the first who asks, then
--        number and position in line of each of the others and how many are for it ('count number position count …';
--        'wait' is then that of those who got nothing), how many leases have ended, how many were not acked at their
--        first attempt, then number (from 1 on), status and failures of each of those, then '0' and for each message:
--        ticket, attempt, put at, made id, deadline, element; or, if all are leased for the first time and their tickets
--        follow each other: the first ticket, deadline, how many were put when ('count ms count ms …'), and elements. If
--        these are told in one piece the ticket is below 0, and behind the times are how many they are, how many bytes
--        each has, and an array of them in MessagePack.
--        Status: OK, QUEUE_DRAINED, POLL_TOO_SOON (then only ms to go follows), PLACE_LOST, or why there is no queue. Only
--        with the first two something may have been acked.
-- Those who stand in line come first: whoever is not the first may lease what is left when each before it has one. A
-- caller that ends leases of its own may take as many at once. Of several who ask, each is served when those before it
-- have as many as they asked for, or may have; whoever does not stand directly behind the one before is not, and asks
-- again.
-- O(k log n). Room in the line wakes the first waiting producer; what is left calls the next consumers.
-- @include due
-- @include settle
-- @include stands
-- @include leasing
local RANDOM_SIZE = 16
local OTHERS, WAITER = tonumber(ARGV[14]), ARGV[9]
local MOST, ROOM = string.match(ARGV[4], '^(%d+) ?(%d*)$')
-- Those who ask, in order: the first, whose number may yet be found, then the others.
local asks = { { waiter = WAITER, number = tonumber(ARGV[10]), most = tonumber(MOST) } }
for i = 1, OTHERS do
  local at = 11 + 4 * i
  asks[1 + i] = { waiter = ARGV[at], number = tonumber(ARGV[at + 1]), most = tonumber(ARGV[at + 2]),
                  acks = tonumber(ARGV[at + 3]) }
end
local ATTEMPT = ARGV[8] ~= '' and string.sub(ARGV[8], ASKER_SIZE + 1)
for i, ask in ipairs(asks) do ask.random = string.sub(ARGV[6], (i - 1) * RANDOM_SIZE + 1, i * RANDOM_SIZE) end
local me = asks[1]
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
if not is_life(S, ARGV[13]) then
  for _, ask in ipairs(asks) do redis.call('ZREM', K.consumers, ask.waiter) end
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_DELETED }
end
local function is_drained(leased)
  return S.closed and S.len == 0 and leased == 0 and redis.call('EXISTS', K.delayed) == 0
end
-- Whose place is lost is told so before anything is acked. But the same attempt again has used its place up; and where
-- nobody will ever have a turn, a place is nothing to lose.
local kept, kept_number
if ARGV[11] ~= '' then
  kept, kept_number = kept_place(ARGV[11])
  if not kept and not (ATTEMPT and attempt_lives(S, ATTEMPT)) and not is_drained(leased_count(S)) then
    commit(S, false, nil)
    return { ARGV[1], T.PLACE_LOST, '0' }
  end
end
-- What is said first is known last; behind it stands what was settled, and then what is given.
local reply = { ARGV[1], '', 0, '', '', '', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', 0 }
local ACKS_AT, EXCEPTIONS_AT = 15 + 4 * OTHERS, #reply + 1
local acks, ended, acked, late = tonumber(ARGV[ACKS_AT]), 0, 0, nil
if acks > 0 then ended, acked, late = ack_leases(S, ACKS_AT + 1, acks, '', reply) else reply[#reply + 1] = 0 end
if ROOM ~= '' then me.most = math.min(me.most, tonumber(ROOM) + ended) end
-- A negative number of bytes: also the first message must fit.
local L = new_leasing(asks, math.abs(tonumber(ARGV[7])), string.byte(ARGV[7]) == 45,
                      pack_holder(S.now, string.sub(ARGV[3], 1, 255)), reply)
local random = me.random
if ATTEMPT then random = deliver_again(S, L, ATTEMPT, ARGV[8]) or random end

-- How many leases each of those who ask has ended: as many as it named, but for those that were none any more. O(k).
local function ended_by_each()
  me.acks = acks
  for i = 2, #asks do me.acks = me.acks - asks[i].acks end
  local counts, i, to = {}, 1, me.acks
  for k, ask in ipairs(asks) do counts[k] = ask.acks end
  for at = EXCEPTIONS_AT + 1, EXCEPTIONS_AT + 3 * reply[EXCEPTIONS_AT], 3 do
    local number = reply[at]
    if number <= to - asks[i].acks then i, to = 1, me.acks end   -- they come in two runs, each in order
    while number > to do
      i = i + 1
      to = to + asks[i].acks
    end
    if reply[at + 1] ~= T.ACKED or late[number] then counts[i] = counts[i] - 1 end
  end
  return counts
end

-- Of several who ask while `ahead` stand before them each may have as many as it has ended leases, or what is left for it
-- if that is more: what one has earned is nobody else's. Returns how many of `units` they may have together.
local function deal(units, ahead)
  local left = units
  for i, count in ipairs(ended_by_each()) do
    local ask = asks[i]
    ask.most = math.min(ask.most, math.max(left - ahead, math.min(count, left)))
    left = left - ask.most
  end
  return units - left
end

local limit = policy_of(S, 'limit')
local leased = (limit > 0 or S.closed) and leased_count(S) or 0   -- else nothing depends on it
local slots = limit == 0 and math.huge or math.max(0, limit - leased)
local wait, holder, ahead = '', '', 0
local is_owner = ended > 0 and limit > 0 and OTHERS == 0   -- of a slot: it keeps it, and does not queue again
if me.number == 0 and ARGV[12] ~= '' then   -- the answer that told its number may have been lost
  me.number = tonumber(redis.call('ZSCORE', K.consumers, WAITER) or 0)
end
local is_over = L.given == 0 and is_drained(leased)
if kept and L.given == 0 and not is_over then
  local is_poll = acked == 0 and ARGV[12] == ''
  local trouble, ms = come_back(S, ARGV[11], kept, is_poll and units_of(S) or nil)
  if trouble then
    commit(S, false, nil)
    return { ARGV[1], trouble, ms }
  end
  me.number = kept_number
end
if is_owner and me.number == 0 then me.number = number_before_all(S) end
local was_dropped = false
for i, ask in ipairs(me.number ~= 0 and asks or {}) do
  local is_new = ask.waiter ~= '' and redis.call('ZADD', K.consumers, 'NX', ask.number, ask.waiter) == 1
  if is_new and (i > 1 or ARGV[10] ~= '0') then was_dropped = true end
end
local stands_more = false   -- behind as many as had expired, or been withdrawn, or were gone, and one step takes away
if L.given > 0 then
  wait = ''
elseif is_over then
  status = T.QUEUE_DRAINED
elseif S.paused == 1 then
  wait = 'paused'
elseif not role_is_free('consumer') then
  wait, holder = 'role', holder_of('consumer')
elseif S.len == 0 then
  wait = S.closed and 'drain' or 'empty'
elseif me.most == 0 then
  wait = 'line'   -- until it may be given something
elseif slots == 0 then
  wait = 'slot'
elseif redis.call('EXISTS', K.consumers) == 1 then
  local units = math.min(S.len, slots)
  ahead = count_ahead(S, WAITER ~= '' and WAITER or nil, units)
  if ahead > 0 and ended > 0 then
    ahead = math.min(ahead, units - (OTHERS > 0 and deal(units, ahead) or math.min(ended, units)))
  end
  if ahead >= units then wait, stands_more = 'line', S.is_walk_cut end
else
  S.is_line_empty = true
end
status = status or T.OK

-- How many messages may go to those who ask, together: to those who stand directly behind the first, if they stand.
local function asked_for()
  local most = me.most
  if OTHERS == 0 then return most end
  local rank = me.number ~= 0 and redis.call('ZRANK', K.consumers, WAITER)
  local line = rank and redis.call('ZRANGE', K.consumers, rank, rank + OTHERS)
  for i = 2, #asks do
    if line and line[i] ~= asks[i].waiter then break end
    most = most + asks[i].most
  end
  return most
end

if status == T.OK and wait == '' and L.given == 0 then
  local lease_ms = tonumber(ARGV[5])
  if lease_ms == 0 then lease_ms = math.min(policy_of(S, 'lease_ms'), MAX_LEASE_MS) end
  local is_plain = S.returned == 0 and S.n_gaps == 0 and S.expiring == 0 and not has_extra(S, K.side)
  local most = math.min(asked_for(), slots, S.len - ahead, slots - ahead)
  L.ahead = ahead
  local before = S.len
  local is_cut = (is_plain and lease_plain or lease_any)(S, L, most, S.now + lease_ms)
  if L.taken == 0 then
    stands_more = S.len > ahead and not is_cut
    wait = is_cut and 'large' or not stands_more and (S.len > 0 and 'line' or S.closed and 'drain') or 'empty'
  end
  if S.len < before then S.made_room = true end
end

if L.taken > 0 then
  add(S, 'n_departed', L.taken)
  if ATTEMPT then keep_attempt(S, ATTEMPT, random, L.tickets) end
  redis.call('SET', K.consumer, ARGV[3])
  if L.counted > 0 then
    redis.call('INCRBY', K.consumed_messages, L.counted)
    redis.call('INCRBY', K.consumed_bytes, L.counted_bytes)
    add(S, 'seen_cons', L.counted)
  end
end

-- One of those who ask has got `share` messages: if that is something it leaves the line, else it stands there. Returns
-- its number and its position.
local poll = { 0, 0, 0 }
local function stand_or_leave(ask, share)
  local waiter, number = ask.waiter, ask.number
  if waiter == '' then return number, 0 end
  if S.turn_to == waiter then set(S, 'turn_to', '') end   -- it has come; if it stands on it is called anew
  if share > 0 or status ~= T.OK or wait == 'large' then
    if number ~= 0 then redis.call('ZREM', K.consumers, waiter) end
    return number, 0
  end
  if number == 0 then number = number_behind_all(S) end
  S.is_line_empty = false
  redis.call('ZADD', K.consumers, 'NX', number, waiter)
  if poll[1] == 0 then
    for i, name in ipairs({ 'poll_base_ms', 'poll_per_position_ms', 'poll_max_ms' }) do
      poll[i] = policy_of(S, name)
    end
  end
  return number, redis.call('ZRANK', K.consumers, waiter) + 1
end
local given, taken, length = L.given, L.taken, 0
local shared_out = OTHERS == 0 and given or math.min(given, me.most)
local is_short = shared_out == 0   -- whether one of them waits for what the others have left
local told_each = { shared_out }
local number, position = stand_or_leave(me, shared_out)
if WAITER ~= '' and position == 0 then
  if ARGV[11] ~= '' then forget_place(ARGV[11]) end
  if ARGV[12] ~= '' and taken > 0 then own_leases(WAITER, random, taken, ARGV[12] == '2') end
end
for i = 2, #asks do
  local share = math.min(asks[i].most, given - shared_out)
  shared_out, is_short = shared_out + share, is_short or share == 0
  local at, rank = stand_or_leave(asks[i], share)
  local n = #told_each
  told_each[n + 1], told_each[n + 2], told_each[n + 3] = text_of(at), text_of(rank), share
end
if is_short and given > 0 then
  wait = S.len > 0 and (slots > taken and 'line' or 'slot') or S.closed and 'drain' or 'empty'
end
if (WAITER ~= '' or OTHERS > 0) and not S.is_line_empty then length = redis.call('ZCARD', K.consumers) end
local due = commit(S, false, nil)
local left = given > 0 and (taken == 0 and 1 or math.max(0, math.min(S.len, slots - taken))) or stands_more and 1 or 0
local told = { ARGV[1], status, S.now, S.gen, wait, holder, random, due, number, position, length, limit, poll[1],
  poll[2], poll[3], was_dropped and 1 or 0, left, table.concat(told_each, ' '), ended }
for i, value in ipairs(told) do reply[i] = value end
return reply
