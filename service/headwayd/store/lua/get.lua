#!lua flags=allow-oom
-- Acks earlier leases, then leases messages from the head; or gives the leases of the same attempt once more.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] consumer's name
-- ARGV[4] most messages; for several who ask, of the first
-- ARGV[5] lease (ms); '0' = the queue's policy
-- ARGV[6] random part of the new leases' nonces, 16 bytes; for several who ask as many for each, in order
-- ARGV[7] most bytes of elements in the reply; one message is always given, unless the number is negative: then what is
--         larger stays, and who asks does not stand in line for it
-- ARGV[8] attempt id; '' = none
-- ARGV[9] waiter (process name, '#', number) that stands in the consumer line if it gets nothing; '' = does not wait
-- ARGV[10] the number in line that the waiter had before; '0' = none that it knows of
-- ARGV[11] a place kept between calls that the waiter comes back to; '' = none
-- ARGV[12] '1': the waiter's stream owns what it gets; '2': and when that is settled it goes on before all others; '' =
--        neither
-- ARGV[13] generation in which the waiter began to wait; '' = whichever it is
-- ARGV[14] count of others who ask in the same step, all for the same, with neither attempt nor place, and without a
--         stream that owns what they get; then waiter, number and most messages of each, in the order in which they are
--         served. Either none of all who ask has a number yet, or all have, and they are in the order of these.
-- then count of leases to ack, and the leases (see include/settle)
-- Reply: echo, status, now, generation, wait ('' | 'empty' | 'large' | 'drain' | 'slot' | 'line' | 'role' | 'paused'),
--        holder, random part of the nonces, next due, number in line, position in line, length of the line, limit,
--        poll_base, poll_per_position and poll_max of the policy, '1' if a waiter stood no longer there, how many more
--        could be leased after what was given (1 if that was given before), number and position in line of each of the
--        others ('number position …'; 'wait' is then that of those who got nothing), how many leases were not acked at
--        their first attempt, then number (from 1 on), status and failures of each of those, then '0' and for each
--        message:
--        ticket, attempt, put at, made id, deadline, element; or, if all are leased for the first time and their tickets
--        follow each other: the first ticket, deadline, how many were put when ('count ms count ms …'), and elements.
--        Status: OK, QUEUE_DRAINED, POLL_TOO_SOON (then only ms to go follows), PLACE_LOST, or why there is no queue.
-- Those who stand in line come first: whoever is not the first may lease what is left when each before it has one. A
-- caller that ends leases of its own may take as many at once. Of several who ask, each is served when those before it
-- have as many as they asked for; whoever does not stand directly behind the one before is not, and asks again.
-- O(k log n). Room in the line wakes the first waiting producer; what is left calls the next consumers.
-- @include due
-- @include settle
-- @include stands
local CHUNK_OUT, RANDOM_SIZE = 64, 16
local MOST_BYTES, MUST_FIT = math.abs(tonumber(ARGV[7])), string.byte(ARGV[7]) == 45
local OTHERS, others = tonumber(ARGV[14]), {}
for i = 1, OTHERS do
  local at = 12 + 3 * i
  others[i] = { waiter = ARGV[at], number = tonumber(ARGV[at + 1]), most = tonumber(ARGV[at + 2]) }
end
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
if not is_life(S, ARGV[13]) then
  redis.call('ZREM', K.consumers, ARGV[9])
  for _, other in ipairs(others) do redis.call('ZREM', K.consumers, other.waiter) end
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_DELETED }
end
-- What is said first is known last; behind it stands what was settled, and then what is given.
local reply = { ARGV[1], '', 0, '', '', '', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '' }
local ACKS_AT = 15 + 3 * OTHERS
local acks, ended = tonumber(ARGV[ACKS_AT]), 0
if acks > 0 then ended = ack_leases(S, ACKS_AT + 1, acks, '', reply) else reply[#reply + 1] = 0 end
local WAITER, number, MOST = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[4])

local random, given, reply_at = string.sub(ARGV[6], 1, RANDOM_SIZE), 0, #reply + 1
reply[reply_at] = 0
local function deliver(ticket, attempt, put_at, id, deadline, element)
  local at = reply_at + 6 * given
  reply[at + 1], reply[at + 2], reply[at + 3] = tonumber(ticket), attempt, put_at
  reply[at + 4], reply[at + 5], reply[at + 6] = id, deadline, element
  given = given + 1
end
local function deliver_again(ticket, record, deadline, element)
  deliver(ticket, record.failures + 1, record.put_at, record.id, deadline, element)
end

if ARGV[8] ~= '' then
  local again, first_random = leases_of_attempt(S, ARGV[8])
  local bytes = 0
  for _, lease in ipairs(again) do
    local element = redis.call('HGET', K.body, lease.ticket)
    bytes = bytes + #element
    if given > 0 and bytes > MOST_BYTES then break end
    random = first_random
    if not has_flag(lease.record.flags, FLAG.CLAIMED) then
      lease.record.flags = with_flag(lease.record.flags, FLAG.CLAIMED)
      redis.call('HSET', K.lease, lease.ticket, pack_leased(lease.record, lease.record.holder))
    end
    deliver_again(lease.ticket, lease.record, tonumber(lease.deadline), element)
  end
end

local leased = leased_count(S)
local limit = policy_of(S, 'limit')
local slots = limit == 0 and math.huge or math.max(0, limit - leased)
local wait, holder, ahead = '', '', 0
local is_owner = ended > 0 and limit > 0 and OTHERS == 0   -- of a slot: it keeps it, and does not queue again
if number == 0 and ARGV[12] ~= '' then   -- the answer that told its number may have been lost
  number = tonumber(redis.call('ZSCORE', K.consumers, WAITER) or 0)
end
if ARGV[11] ~= '' and given == 0 then
  local is_poll = ended == 0 and ARGV[12] == ''
  local trouble, ms, had = come_back(S, ARGV[11], is_poll and units_of(S) or nil)
  if trouble then
    commit(S, false, nil)
    return { ARGV[1], trouble, ms }
  end
  number = had
end
if is_owner and number == 0 then number = number_before_all(S) end
local was_dropped = false
if WAITER ~= '' and number ~= 0 then
  was_dropped = redis.call('ZADD', K.consumers, 'NX', number, WAITER) == 1 and ARGV[10] ~= '0'
end
for _, other in ipairs(number ~= 0 and others or {}) do
  if redis.call('ZADD', K.consumers, 'NX', other.number, other.waiter) == 1 then was_dropped = true end
end
if given > 0 then
  wait = ''
elseif S.closed and S.len == 0 and leased == 0 and redis.call('EXISTS', K.delayed) == 0 then
  status = T.QUEUE_DRAINED
elseif S.paused == 1 then
  wait = 'paused'
elseif not role_is_free('consumer') then
  wait, holder = 'role', holder_of('consumer')
elseif S.len == 0 then
  wait = S.closed and 'drain' or 'empty'
elseif slots == 0 then
  wait = 'slot'
elseif redis.call('EXISTS', K.consumers) == 1 then
  local units = math.min(S.len, slots)
  ahead = math.min(count_ahead(S, WAITER ~= '' and WAITER or nil, units), units - math.min(ended, units))
  if ahead >= units then wait = 'line' end
end
status = status or T.OK

local consumer = pack_holder(S.now, string.sub(ARGV[3], 1, 255))
local taken, counted, counted_bytes, attempted = 0, 0, 0, ''

-- How many messages may go to those who ask, together: to those who stand directly behind the first, if they stand.
local function asked_for()
  local most = MOST
  if OTHERS == 0 then return most end
  local rank = number ~= 0 and redis.call('ZRANK', K.consumers, WAITER)
  local line = rank and redis.call('ZRANGE', K.consumers, rank + 1, rank + OTHERS)
  for i, other in ipairs(others) do
    if line and line[i] ~= other.waiter then break end
    most = most + other.most
  end
  return most
end

-- The random part for the `i`th of those who ask (the first is 1).
local function random_of(i)
  return OTHERS == 0 and random or string.sub(ARGV[6], (i - 1) * RANDOM_SIZE + 1, i * RANDOM_SIZE)
end

-- Calls act(random, from, to) for each of those who ask whose share of `count` messages is not nothing.
local function each_share(count, act)
  local from, to = 1, math.min(MOST, count)
  if to >= from then act(random_of(1), from, to) end
  for i, other in ipairs(others) do
    from, to = to + 1, math.min(to + other.most, count)
    if to >= from then act(random_of(i + 1), from, to) end
  end
end

-- Those from `first` on go back to the head that they were taken from.
local function put_back(elements, first)
  local back = {}
  for i = #elements, first, -1 do back[#back + 1] = elements[i] end
  push_head(back)
end

-- Leases of their own, which are written down all at once.
local leases, kept, bodies = {}, {}, {}
local function keep(deadline_text, ticket, packed, element)
  local i = #leases + 1
  leases[i], leases[i + 1] = deadline_text, ticket
  kept[i], kept[i + 1] = ticket, packed
  bodies[i], bodies[i + 1] = ticket, element
end
local function write_kept()
  add_members(K.leases, leases)
  set_fields(K.lease, kept)
  set_fields(K.body, bodies)
end

local function text_of_runs(put_runs)
  local texts = {}
  for i, value in ipairs(put_runs) do texts[i] = text_of(value) end
  return table.concat(texts, ' ')
end

-- What was leased for the first time, from the ticket `first` on: for each who asks a bundle, or leases of their own.
-- `put_runs` has how many were put when, in order ('count, ms, count, ms, …').
local function keep_fresh(first, elements, put_runs, is_named, rest, deadline_text)
  local run, left = 1, put_runs[1]   -- from which run the next is, and how many more are
  each_share(#elements, function(secret, from, to)
    local count, runs, part = to - from + 1, put_runs, elements
    if count < #elements then
      runs, part = {}, {}
      for i = from, to do part[#part + 1] = elements[i] end
      while count > 0 do
        if left == 0 then run, left = run + 2, put_runs[run + 2] end
        local together = math.min(left, count)
        runs[#runs + 1], runs[#runs + 2] = together, put_runs[run + 1]
        left, count = left - together, count - together
      end
    end
    local put_when = #part >= BUNDLE_LEAST and not is_named and text_of_runs(runs)
    if put_when and #put_when < 65536 then
      tie(S, secret, first + from - 1, part, put_when, rest, deadline_text)
    else
      local at = 0
      for i = 1, #runs, 2 do
        local packed = fresh_part(runs[i + 1]) .. secret .. rest
        for _ = 1, runs[i] do
          at = at + 1
          keep(deadline_text, string.format('%d', first + from + at - 2), packed, part[at])
        end
      end
    end
  end)
  write_kept()
end

-- Leases messages from the head of a line without anything in it but elements of which nothing more is known: then their
-- tickets follow each other, and the records of those that were put at the same time differ in nothing but the nonce.
-- Returns whether the next one is more than the reply can hold.
local function lease_plain(most, deadline)
  local deadline_text, rest = text_of(deadline), fresh_rest(consumer)
  local first, at, bytes, is_cut, is_named = S.head + 1, reply_at + 2, 0, false, false
  local last, known_put_at, known_to, put_together, put_from = S.head, 0, 0, nil, 1
  local leased_elements, put_runs = {}, {}
  reply[reply_at], reply[reply_at + 1], reply[reply_at + 2] = first, deadline, ''
  while taken < most and not is_cut do
    local part = redis.call('RPOP', K.q, math.min(most - taken, CHUNK_OUT))
    for i = 1, #part do
      local element = part[i]
      if bytes + #element > MOST_BYTES and (MUST_FIT or taken > 0) then
        put_back(part, i)
        is_cut = true
        break
      end
      bytes, taken, last = bytes + #element, taken + 1, last + 1
      local id, put_at = '', 0
      if string.byte(element) == MAGIC_BYTE then id, put_at = id_of(element) end
      if id ~= '' then is_named = true end
      if put_at == 0 then
        if last >= known_to then known_put_at, known_to = time_of(S, last) end
        put_at = known_put_at
      end
      if put_at ~= put_together then
        if put_together then put_runs[#put_runs + 1], put_runs[#put_runs + 2] = taken - put_from, put_together end
        put_together, put_from = put_at, taken
      end
      at = at + 1
      reply[at], leased_elements[taken] = element, element
    end
  end
  if taken > 0 then
    set(S, 'head', last)
    put_runs[#put_runs + 1], put_runs[#put_runs + 2] = taken + 1 - put_from, put_together
    reply[reply_at + 2], attempted = text_of_runs(put_runs), text_of(first) .. '-' .. text_of(last)
    keep_fresh(first, leased_elements, put_runs, is_named, rest, deadline_text)
    for ticket = first, S.watched_until > S.now and last or 0 do tell(S, 'L', text_of(ticket), 1) end
  else
    reply[reply_at], reply[reply_at + 1], reply[reply_at + 2] = 0, nil, nil
  end
  S.size, S.len = S.size - taken, S.len - taken
  given, counted, counted_bytes = taken, taken, bytes
  return is_cut
end

-- Takes messages from the head of any line, those whose time is over aside. Returns whether the next one is more than
-- the reply can hold.
-- Of one that was never leased and never expires only `put_ats` tells; `records` has what is known of the others.
local tickets, elements, records, put_ats = {}, {}, {}, {}
local function take(most)
  local old, bytes, is_cut = {}, 0, false
  while #tickets < most and S.len > 0 and not is_cut do
    local part = redis.call('RPOP', K.q, math.min(most - #tickets, CHUNK_OUT))
    local passed_tickets, passed_elements = {}, {}
    local passed = walk(S, #part, function(i, ticket)
      bytes = bytes + #part[i]
      if bytes > MOST_BYTES and (MUST_FIT or #tickets > 0 or #passed_tickets > 0) then return false end
      passed_tickets[#passed_tickets + 1], passed_elements[#passed_elements + 1] = ticket, part[i]
    end)
    if passed.count < #part then
      is_cut = true
      put_back(part, passed.count + 1)
    end
    take_walked(S, passed)
    local count = #passed_tickets
    S.size, S.len = S.size - passed.count, S.len - count
    local expiries = S.expiring == 1 and count > 0 and redis.call('ZMSCORE', K.expiry, unpack(passed_tickets)) or {}
    local sides = count > 0 and redis.call('EXISTS', K.side) == 1 and fields_of(K.side, passed_tickets) or {}
    for i, ticket in ipairs(passed_tickets) do
      local element, expires_at = passed_elements[i], tonumber(expiries[i] or 0)
      local record, put_at = sides[i] and unpack_record(sides[i]), 0
      if not record then
        if string.byte(element) == MAGIC_BYTE then put_at = (select(2, id_of(element))) end
        if put_at == 0 then put_at = (time_of(S, tonumber(ticket))) end
        if expires_at > 0 then record = new_record(put_at) end
      end
      if record then record.expires_at = expires_at end
      if expires_at > 0 and expires_at <= S.now then
        old[#old + 1] = { ticket, element, record }
      else
        local at = #tickets + 1
        tickets[at], elements[at], records[at], put_ats[at] = ticket, element, record or false, put_at
      end
    end
    if #sides > 0 then remove_fields(K.side, passed_tickets) end
    if #expiries > 0 then remove_members(K.expiry, passed_tickets) end
  end
  for _, entry in ipairs(old) do expire(S, entry[1], entry[2], entry[3]) end
  return is_cut
end

-- Leases messages from the head of any line. Returns the same.
local function lease_any(most, deadline)
  local is_cut = take(most)
  local deadline_text, rest = text_of(deadline), fresh_rest(consumer)
  local secrets = {}
  each_share(#tickets, function(secret, from, to)
    for i = from, to do secrets[i] = secret end
  end)
  for i, ticket in ipairs(tickets) do
    local record, element = records[i], elements[i]
    local packed, attempt
    if record then
      attempt = record.failures + 1
      record.nonce = secrets[i] .. struct.pack('>I4', attempt)
      record.flags = without_flag(without_flag(record.flags, FLAG.LAPSED), FLAG.CLAIMED)
      if not has_flag(record.flags, FLAG.COUNTED) then
        record.flags = with_flag(record.flags, FLAG.COUNTED)
        counted, counted_bytes = counted + 1, counted_bytes + #element
      end
      packed = pack_leased(record, consumer)
      deliver_again(ticket, record, deadline, element)
    else
      attempt = 1
      counted, counted_bytes = counted + 1, counted_bytes + #element
      packed = fresh_part(put_ats[i]) .. secrets[i] .. rest
      deliver(ticket, attempt, put_ats[i], '', deadline, element)
    end
    keep(deadline_text, ticket, packed, element)
    tell(S, 'L', ticket, attempt)
  end
  write_kept()
  taken, attempted = #tickets, table.concat(tickets, ',')
  return is_cut
end

if status == T.OK and wait == '' and given == 0 then
  local lease_ms = tonumber(ARGV[5])
  if lease_ms == 0 then lease_ms = policy_of(S, 'lease_ms') end
  local is_plain = S.returned == 0 and S.n_gaps == 0 and S.expiring == 0 and redis.call('EXISTS', K.side) == 0
  local most = math.min(asked_for(), slots, S.len - ahead, slots - ahead)
  local is_cut = (is_plain and lease_plain or lease_any)(most, S.now + lease_ms)
  if taken == 0 then wait = MUST_FIT and is_cut and 'large' or S.closed and 'drain' or 'empty' end
  S.made_room = true
end

if taken > 0 then
  add(S, 'n_departed', taken)
  if ARGV[8] ~= '' then keep_attempt(S, ARGV[8], random, attempted) end
  redis.call('SET', K.consumer, ARGV[3])
  if counted > 0 then
    redis.call('INCRBY', K.consumed_messages, counted)
    redis.call('INCRBY', K.consumed_bytes, counted_bytes)
    add(S, 'seen_cons', counted)
  end
end

-- One of those who ask has got `share` messages: if that is something it leaves the line, else it stands there. Returns
-- its number and its position.
local poll = { 0, 0, 0 }
local function stand_or_leave(waiter, at, share)
  if waiter == '' then return at, 0 end
  if share > 0 or status ~= T.OK or wait == 'large' then
    if at ~= 0 then redis.call('ZREM', K.consumers, waiter) end
    if S.turn_to == waiter then set(S, 'turn_to', '') end
    return at, 0
  end
  if at == 0 then at = number_behind_all(S) end
  redis.call('ZADD', K.consumers, 'NX', at, waiter)
  if poll[1] == 0 then
    for i, name in ipairs({ 'poll_base_ms', 'poll_per_position_ms', 'poll_max_ms' }) do
      poll[i] = policy_of(S, name)
    end
  end
  return at, redis.call('ZRANK', K.consumers, waiter) + 1
end
local position, length, told_others, shared_out = 0, 0, {}, math.min(given, MOST)
number, position = stand_or_leave(WAITER, number, OTHERS == 0 and given or shared_out)
if WAITER ~= '' and position == 0 then
  if ARGV[11] ~= '' then forget_place(ARGV[11]) end
  if ARGV[12] ~= '' and taken > 0 then own_leases(WAITER, random, taken, ARGV[12] == '2') end
end
for i, other in ipairs(others) do
  local share = math.min(other.most, given - shared_out)
  shared_out = shared_out + share
  if share == 0 and given > 0 then   -- this one waits for what the others have left
    wait = S.len > 0 and (slots > taken and 'line' or 'slot') or S.closed and 'drain' or 'empty'
  end
  local at, rank = stand_or_leave(other.waiter, other.number, share)
  told_others[2 * i - 1], told_others[2 * i] = text_of(at), text_of(rank)
end
if WAITER ~= '' or OTHERS > 0 then length = redis.call('ZCARD', K.consumers) end
local due = commit(S, false, nil)
local left = given > 0 and (taken == 0 and 1 or math.max(0, math.min(S.len, slots - taken))) or 0
local told = { ARGV[1], status, S.now, S.gen, wait, holder, random, due, number, position, length, limit, poll[1],
  poll[2], poll[3], was_dropped and 1 or 0, left, table.concat(told_others, ' ') }
for i, value in ipairs(told) do reply[i] = value end
return reply
