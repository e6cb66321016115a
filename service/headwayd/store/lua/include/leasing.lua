-- @include attempts due names
-- Leases messages from the head of the line for those who ask in one step, and writes what they are given into the
-- reply. A leasing L:
--   asks                     those who ask, in the order in which they are served: each has `most` (messages) and
--                            `random` (of the nonces of its leases, 16 bytes)
--   most_bytes, must_fit     of elements in the reply; whether also the first message must fit (see get)
--   consumer                 the holder, packed
--   ahead                    messages that are for those who stand before
--   reply, at                the reply, and the index behind which messages stand there
--   given                    messages in the reply
--   taken, tickets           messages that this step leases, and their tickets as an attempt keeps them
--   counted, counted_bytes   what of these left the line for the first time
--   leases, kept, bodies     leases of their own, until they are written down all at once
local CHUNK_OUT = 64
local FEW = 8   -- messages of which each uses the same keys
-- Messages that may be told in one piece: so many at least, and of so many bytes at most. Of larger ones the one that asks
-- would only copy more.
local PIECE_LEAST, PIECE_SIZE = 8, 2048

local function new_leasing(asks, most_bytes, must_fit, consumer, reply)
  reply[#reply + 1] = 0
  return { asks = asks, most_bytes = most_bytes, must_fit = must_fit, consumer = consumer, ahead = 0, reply = reply,
           at = #reply, given = 0, taken = 0, tickets = '', counted = 0, counted_bytes = 0, leases = {}, kept = {},
           bodies = {} }
end

local function deliver(L, ticket, attempt, put_at, id, deadline, element)
  local reply, at = L.reply, L.at + 6 * L.given
  reply[at + 1], reply[at + 2], reply[at + 3] = tonumber(ticket), attempt, put_at
  reply[at + 4], reply[at + 5], reply[at + 6] = id, deadline, element
  L.given = L.given + 1
end
local function deliver_known(L, ticket, record, deadline, element)
  deliver(L, ticket, record.failures + 1, record.put_at, record.id, deadline, element)
end

-- Gives the leases of the same attempt once more, as far as they live and fit into the reply; from now on they stay until
-- `asker`, too, has gone. Returns the random part of their nonces; nil if there are none. O(k).
local function deliver_again(S, L, attempt, asker)
  local again, random, tickets_text = leases_of_attempt(S, attempt)
  local bytes = 0
  for _, lease in ipairs(again) do
    local element = redis.call('HGET', K.body, lease.ticket)
    bytes = bytes + #element
    if L.given > 0 and bytes > L.most_bytes then break end
    if not has_flag(lease.record.flags, FLAG.CLAIMED) then
      lease.record.flags = with_flag(lease.record.flags, FLAG.CLAIMED)
      redis.call('HSET', K.lease, lease.ticket, pack_leased(lease.record, lease.record.holder))
    end
    deliver_known(L, lease.ticket, lease.record, tonumber(lease.deadline), element)
  end
  if not again[1] then return nil end
  note_asker(attempt, random, tickets_text, again, asker)
  return random
end

-- Calls act(random, from, to) for each of those who ask whose share of `count` messages is not nothing.
local function each_share(L, count, act)
  local from, to = 1, 0
  for _, ask in ipairs(L.asks) do
    from, to = to + 1, math.min(to + ask.most, count)
    if to >= from then act(ask.random, from, to) end
  end
end

-- Those from `first` on go back to the head that they were taken from.
local function put_back(elements, first)
  local back = {}
  for i = #elements, first, -1 do back[#back + 1] = elements[i] end
  push_head(back)
end

local function keep_lease(L, deadline_text, ticket, packed, element)
  local leases, kept, bodies = L.leases, L.kept, L.bodies
  local i = #leases + 1
  leases[i], leases[i + 1] = deadline_text, ticket
  kept[i], kept[i + 1] = ticket, packed
  bodies[i], bodies[i + 1] = ticket, element
end
local function write_leases(L)
  add_members(K.leases, L.leases)
  set_fields(K.lease, L.kept)
  set_fields(K.body, L.bodies)
end

local function text_of_runs(put_runs)
  local texts = {}
  for i, value in ipairs(put_runs) do texts[i] = text_of(value) end
  return table.concat(texts, ' ')
end

-- What was leased for the first time, from the ticket `first` on: for each who asks a bundle, or leases of their own.
-- `put_runs` has how many were put when, in order ('count, ms, count, ms, …'); `packed`: all elements, if they are packed.
local function keep_fresh(S, L, first, elements, packed, put_runs, is_named, rest, deadline_text)
  local run, left = 1, put_runs[1]   -- from which run the next is, and how many more are
  each_share(L, #elements, function(random, from, to)
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
      tie(S, random, first + from - 1, part, packed, put_when, rest, deadline_text)
    else
      local at = 0
      for i = 1, #runs, 2 do
        local packed = fresh_part(runs[i + 1], is_named) .. random .. rest
        for _ = 1, runs[i] do
          at = at + 1
          keep_lease(L, deadline_text, string.format('%d', first + from + at - 2), packed, part[at])
        end
      end
    end
  end)
  write_leases(L)
end

-- Takes what is first in the line, as far as it fits into the reply. Returns the elements, how many bytes they have, how
-- many each has (-1: not all have as many), and whether the next one does not fit. O(k).
local function take_first(L, most)
  local elements, taken, bytes, size = {}, 0, 0, -1
  local most_bytes, must_fit = L.most_bytes, L.must_fit
  while taken < most do
    local part = redis.call('RPOP', K.q, math.min(most - taken, CHUNK_OUT))
    for i = 1, #part do
      local element = part[i]
      local own = #element
      if bytes + own > most_bytes and (must_fit or taken > 0) then
        put_back(part, i)
        return elements, bytes, size, true
      end
      if own ~= size then size = taken == 0 and own or -1 end
      bytes, taken = bytes + own, taken + 1
      elements[taken] = element
    end
  end
  return elements, bytes, size, false
end

-- So many more were put then.
local function note_run(runs, count, put_at)
  local n = #runs
  if runs[n] == put_at then
    runs[n - 1] = runs[n - 1] + count
  else
    runs[n + 1], runs[n + 2] = count, put_at
  end
end

-- When messages of which nothing but that is known were put, as of keep_fresh. O(number of runs), amortised.
local function put_runs_of(S, first, last)
  local runs, ticket = {}, first
  while ticket <= last do
    local put_at, to = time_of(S, ticket)
    local count = math.min(to, last + 1) - ticket
    note_run(runs, count, put_at)
    ticket = ticket + count
  end
  return runs
end

-- The same where some may be frames, which tell it themselves; and whether one has a name. O(k).
local function put_runs_of_each(S, first, elements)
  local runs, is_named, known_put_at, known_to = {}, false, 0, 0
  for i, element in ipairs(elements) do
    local id, put_at = '', 0
    if string.byte(element) == MAGIC_BYTE then id, put_at = id_of(element) end
    if id ~= '' then is_named = true end
    if put_at == 0 then
      if first + i - 1 >= known_to then known_put_at, known_to = time_of(S, first + i - 1) end
      put_at = known_put_at
    end
    note_run(runs, 1, put_at)
  end
  return runs, is_named
end

-- Leases messages from the head of a line without anything in it but elements of which nothing more is known: then their
-- tickets follow each other, and the records of those that were put at the same time differ in nothing but the nonce.
-- Who asks alone gets several of one size in one piece, as their bundle has them: for the store to tell each by itself
-- takes as long as to pack them.
-- Returns whether the next one is more than the reply can hold. O(k + log n).
local function lease_plain(S, L, most, deadline)
  local elements, bytes, size, is_cut = take_first(L, most)
  local reply, at, taken, first = L.reply, L.at, #elements, S.head + 1
  local last = S.head + taken
  if taken > 0 then
    local packed = taken >= BUNDLE_LEAST and not L.asks[2] and string.byte(elements[1]) ~= MAGIC_BYTE
      and cmsgpack.pack(elements) or nil
    local is_bare = packed and not string.find(packed, MAGIC, 1, true)
    local put_runs, is_named
    if is_bare then
      put_runs, is_named = put_runs_of(S, first, last), false
    else
      put_runs, is_named = put_runs_of_each(S, first, elements)
    end
    set(S, 'head', last)
    L.tickets = text_of(first) .. '-' .. text_of(last)
    reply[at], reply[at + 1], reply[at + 2] = first, deadline, text_of_runs(put_runs)
    if is_bare and taken >= PIECE_LEAST and size >= 0 and size <= PIECE_SIZE then
      reply[at], reply[at + 3], reply[at + 4], reply[at + 5] = -first, taken, size, packed
    else
      for i, element in ipairs(elements) do reply[at + 2 + i] = element end
    end
    keep_fresh(S, L, first, elements, packed, put_runs, is_named, fresh_rest(L.consumer), text_of(deadline))
    for ticket = first, S.watched_until > S.now and last or 0 do tell(S, 'L', text_of(ticket), 1) end
  end
  S.size, S.len = S.size - taken, S.len - taken
  L.given, L.taken, L.counted, L.counted_bytes = taken, taken, taken, bytes
  return is_cut
end

-- Takes messages from the head of any line, those whose time is over aside, until these, or the holes among them, are
-- DUE_AT_ONCE. Returns whether the next one is more than the reply can hold, and tickets, elements, what is known of each
-- (false: no more than when it was put, and its id), when each was put, and whether it has an id. O(k log n).
local function take_from_line(S, L, most)
  local tickets, elements, records, put_ats, named = {}, {}, {}, {}, {}
  local old, holes, bytes, is_cut = {}, 0, 0, false
  while #tickets < most and S.len > L.ahead and not is_cut and #old < DUE_AT_ONCE and holes < DUE_AT_ONCE do
    local part = redis.call('RPOP', K.q, math.min(most - #tickets, S.len - L.ahead, CHUNK_OUT))
    local passed_tickets, passed_elements = {}, {}
    local passed = walk(S, #part, function(i, ticket)
      local with_it = bytes + #part[i]
      if with_it > L.most_bytes and (L.must_fit or #tickets > 0 or #passed_tickets > 0) then return false end
      bytes = with_it
      passed_tickets[#passed_tickets + 1], passed_elements[#passed_elements + 1] = ticket, part[i]
    end)
    if passed.count < #part then
      is_cut = true
      put_back(part, passed.count + 1)
    end
    take_walked(S, passed)
    local count = #passed_tickets
    holes = holes + passed.holes
    S.size, S.len = S.size - passed.count, S.len - count
    local expiries = S.expiring == 1 and count > 0 and redis.call('ZMSCORE', K.expiry, unpack(passed_tickets)) or {}
    local sides = count > 0 and redis.call('EXISTS', K.side) == 1 and fields_of(K.side, passed_tickets) or {}
    for i, ticket in ipairs(passed_tickets) do
      local element, expires_at = passed_elements[i], tonumber(expiries[i] or 0)
      local record, put_at, id = sides[i] and unpack_record(sides[i]), 0, ''
      if not record then
        if string.byte(element) == MAGIC_BYTE then id, put_at = id_of(element) end
        if put_at == 0 then put_at = (time_of(S, tonumber(ticket))) end
        if expires_at > 0 then record = new_record(put_at) end
        if record and id ~= '' then record.flags = FLAG.NAMED end
      end
      if record then record.expires_at = expires_at end
      if expires_at > 0 and expires_at <= S.now then
        old[#old + 1] = { ticket, element, record }
        bytes, is_cut = bytes - #element, false   -- without it the next one may fit
      else
        local at = #tickets + 1
        tickets[at], elements[at], records[at], put_ats[at] = ticket, element, record or false, put_at
        named[at] = id ~= ''
      end
    end
    if #sides > 0 then remove_fields(K.side, passed_tickets) end
    if #expiries > 0 then remove_members(K.expiry, passed_tickets) end
  end
  for _, entry in ipairs(old) do expire(S, entry[1], entry[2], entry[3]) end
  return is_cut, tickets, elements, records, put_ats, named
end

-- Leases messages from the head of any line. Returns the same as lease_plain. O(k log n).
local function lease_any(S, L, most, deadline)
  if most > FEW then keep_keys() end
  local is_cut, tickets, elements, records, put_ats, named = take_from_line(S, L, most)
  local deadline_text, rest = text_of(deadline), fresh_rest(L.consumer)
  local randoms = {}
  each_share(L, #tickets, function(random, from, to)
    for i = from, to do randoms[i] = random end
  end)
  for i, ticket in ipairs(tickets) do
    local record, element = records[i], elements[i]
    local packed, attempt, is_first = nil, 1, true
    if record then
      attempt = record.failures + 1
      record.nonce = randoms[i] .. struct.pack('>I4', attempt)
      record.flags = without_flag(without_flag(record.flags, FLAG.LAPSED), FLAG.CLAIMED)
      record.flags = without_flag(record.flags, FLAG.RETAKEN)
      is_first = not has_flag(record.flags, FLAG.COUNTED)
      record.flags = with_flag(record.flags, FLAG.COUNTED)
      packed = pack_leased(record, L.consumer)
      deliver_known(L, ticket, record, deadline, element)
    else
      packed = fresh_part(put_ats[i], named[i]) .. randoms[i] .. rest
      deliver(L, ticket, attempt, put_ats[i], '', deadline, element)
    end
    if is_first then L.counted, L.counted_bytes = L.counted + 1, L.counted_bytes + #element end
    keep_lease(L, deadline_text, ticket, packed, element)
    tell(S, 'L', ticket, attempt)
  end
  write_leases(L)
  L.taken, L.tickets = #tickets, table.concat(tickets, ',')
  return is_cut
end
