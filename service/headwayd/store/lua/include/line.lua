-- @include names kept
-- Moves messages into and back into the line, and out of it until later.

-- Puts messages back at the head, in ticket order with those that came back before (see `blocks`); those whose time is
-- over meanwhile expire. What still has a hole of its own goes back into that. `all` holds {ticket, element, record}.
-- For `give_back` alone: it must be sure what stands there. O(k log n + MOST_MOVED).
local function return_to_head(S, all)
  local list = {}
  for _, entry in ipairs(all) do
    local ticket, expires_at = text_of(entry.ticket), entry.record.expires_at
    if expires_at > 0 and expires_at <= S.now then
      expire(S, ticket, entry.element, entry.record)
    else
      expire_at(S, ticket, expires_at)
      if fill_again(S, ticket) then
        local order = order_of(S, ticket)
        tell(S, 'B', ticket, order ~= ticket and order or nil)
        S.extras = 1
        redis.call('HSET', K.side, ticket, pack_record(entry.record))
      else
        list[#list + 1] = entry
      end
    end
  end
  if #list == 0 then return end
  table.sort(list, function(a, b) return a.ticket < b.ticket end)
  local before, block = place_at_head(S, list[#list].ticket)
  if block > 0 and S.layout ~= BLOCKS then set(S, 'layout', BLOCKS) end
  local less = block * BLOCK
  local merged = {}
  if before > 0 then
    local moved = redis.call('ZRANGE', K.returned, 0, before - 1, 'WITHSCORES')
    local elements = redis.call('RPOP', K.q, before)
    local i = 1
    for at, element in ipairs(elements) do
      while i <= #list and list[i].ticket - less < tonumber(moved[2 * at]) do
        merged[#merged + 1] = list[i].element
        i = i + 1
      end
      merged[#merged + 1] = element
    end
    while i <= #list do
      merged[#merged + 1] = list[i].element
      i = i + 1
    end
  else
    for i, entry in ipairs(list) do merged[i] = entry.element end
  end
  local members, fields, from_tail = {}, {}, {}
  for i = #merged, 1, -1 do from_tail[#from_tail + 1] = merged[i] end
  push_head(from_tail)
  for _, entry in ipairs(list) do
    local ticket = text_of(entry.ticket)
    local order = text_of(entry.ticket - less)
    tell(S, 'B', ticket, block > 0 and order or nil)
    members[#members + 1] = order
    members[#members + 1] = ticket
    fields[#fields + 1] = ticket
    fields[#fields + 1] = pack_record(entry.record)
  end
  S.extras = 1
  add_members(K.returned, members)
  set_fields(K.side, fields)
  S.returned = S.returned + #list
  S.size = S.size + #list
  S.len = S.len + #list
end

-- Puts messages back whose leases have been dropped. While it is not sure what stands at the head (`is_unsure`) they
-- stay as leases that nobody has, and lapse as soon as it is, at no cost. As return_to_head.
local function give_back(S, all)
  if #all == 0 or not is_unsure(S) then return return_to_head(S, all) end
  S.is_put_off = true
  for _, entry in ipairs(all) do
    local ticket, record = text_of(entry.ticket), entry.record
    record.nonce, record.flags = NO_NONCE, with_flag(without_flag(record.flags, FLAG.RETAKEN), FLAG.BACK)
    redis.call('ZADD', K.leases, S.now, ticket)
    redis.call('HSET', K.lease, ticket, pack_record(record))
    redis.call('HSET', K.body, ticket, entry.element)
  end
end

-- Lets messages join the tail. `list` holds {element, name, expires_at, record, from}; the record may be nil, and
-- `from` is the reference that the message, or the one it replaces, had before. Returns the first ticket. O(k log n).
local function join_tail(S, list)
  local first = S.tail + 1
  if #list == 0 then return first end
  note_time(S, first)
  local elements, sides, ids = {}, {}, {}
  for i, entry in ipairs(list) do
    local ticket = text_of(first + i - 1)
    elements[i] = entry.element
    if entry.from then tell(S, 'J', entry.from, ticket) end
    if entry.record then
      sides[#sides + 1] = ticket
      sides[#sides + 1] = pack_record(entry.record)
    end
    expire_at(S, ticket, entry.expires_at)
    if entry.name ~= '' and (not entry.from or is_name_of(entry.name, entry.from)) then
      ids[#ids + 1] = entry.name
      ids[#ids + 1] = 'w' .. ticket
    end
  end
  push_tail(elements)
  if #sides > 0 then
    S.extras = 1
    set_fields(K.side, sides)
  end
  if #ids > 0 then set_fields(K.ids, ids) end
  if S.aged == S.tail then set(S, 'aged', S.tail + #list) end   -- else foreign messages before still have to age
  add(S, 'tail', #list)
  S.size = S.size + #list
  S.len = S.len + #list
  return first
end

-- So many messages of which there is nothing but elements have just been put at the tail, and join the line; all expire
-- at `expires_at` (0 = never). O(1), with an expiry O(k log n).
local function join_bare(S, count, expires_at)
  if count == 0 then return end
  note_time(S, S.tail + 1)
  for ticket = S.tail + 1, expires_at > 0 and S.tail + count or 0 do expire_at(S, text_of(ticket), expires_at) end
  if S.aged == S.tail then set(S, 'aged', S.tail + count) end   -- as in join_tail
  add(S, 'tail', count)
  S.size = S.size + count
  S.len = S.len + count
end

-- Keeps a message until `due`; `from` is the reference that it, or the one it replaces, had before. Returns its
-- sequence number. O(log n).
local function set_aside(S, element, record, due, from)
  add(S, 'seq', 1)
  local seq = padded(S.seq)
  S.extras = 1
  redis.call('ZADD', K.delayed, due, seq)
  redis.call('HSET', K.later, seq, pack_both(record, element))
  expire_at(S, 'd' .. seq, record.expires_at)
  local name = name_of(element, record)
  if name ~= '' and (not from or is_name_of(name, from)) then redis.call('HSET', K.ids, name, 'd' .. seq) end
  if from then tell(S, 'D', from, 'd' .. seq .. ' ' .. text_of(due)) end
  return seq
end

-- Nothing is kept of these leases any more. O(log n) each.
local function forget_leases(S, tickets)
  if #tickets == 0 then return end
  remove_members(K.leases, tickets)
  remove_fields(K.lease, tickets)
  remove_fields(K.body, tickets)
  if has_extra(S, K.progress) then remove_fields(K.progress, tickets) end
end

-- Ends leases, `is_settled` by their holders, in this order; what becomes of their messages is the caller's. `records`
-- are those of x:lease, if they are known. O(log n) each.
local function drop_leases(S, tickets, is_settled, records)
  if #tickets > 0 and redis.call('EXISTS', K.owners) == 1 then
    local ends = {}
    for i, packed in ipairs(records or fields_of(K.lease, tickets)) do
      ends[i] = { at = i, step = owned_as(packed, tickets[i]), count = 1 }
    end
    end_turns(S, ends, is_settled)
  end
  forget_leases(S, tickets)
end

-- Takes delayed messages away. Returns their elements and records. O(log n) each.
local function take_delayed(S, seqs)
  local elements, records = {}, {}
  for i, both in ipairs(fields_of(K.later, seqs)) do records[i], elements[i] = unpack_both(both) end
  remove_members(K.delayed, seqs)
  remove_fields(K.later, seqs)
  if S.expiring == 1 then
    for _, seq in ipairs(seqs) do redis.call('ZREM', K.expiry, 'd' .. seq) end
  end
  return elements, records
end

-- Takes one waiting or delayed message out, by its reference. Returns its element, and its record with everything in
-- it. O(log n + NEAR).
local function take_one(S, ref)
  local expires_at = S.expiring == 1 and redis.call('ZSCORE', K.expiry, ref)
  local elements, records
  if string.byte(ref) == 100 then
    elements, records = take_delayed(S, { string.sub(ref, 2) })
  else
    elements, records = take_out(S, { ref })
    if expires_at then redis.call('ZREM', K.expiry, ref) end
  end
  local element, record = elements[1], records[1]
  if not record then
    local _, put_at = id_of(element)
    record = new_record(put_at)
  end
  record.expires_at = tonumber(expires_at or 0)
  return element, record
end

-- A message that leaves the line keeps the id that it was known by.
local function keep_made_id(S, ref, element, record)
  if record.id ~= '' or id_of(element) ~= '' then return end
  if string.byte(ref) == 100 then ref = 'd' .. text_of(tonumber(string.sub(ref, 2))) end
  record.id = '~' .. S.gen .. '-' .. ref
end

-- The wait after so many failures, by the queue's policy.
local function backoff_of(S, failures)
  local shortest, longest = policy_of(S, 'min_backoff_ms'), policy_of(S, 'max_backoff_ms')
  if shortest == 0 then return 0 end   -- the power may be infinite, and nothing times that is no number
  local wait = math.min(longest, shortest * policy_of(S, 'multiplier') ^ (failures - 1))
  local jitter = policy_of(S, 'jitter')
  if jitter > 0 then
    if not S.is_seeded then
      math.randomseed(tonumber(string.sub(ARGV[1], 1, 7), 16))
      S.is_seeded = true
    end
    wait = math.min(longest, wait * (1 - jitter + 2 * jitter * math.random()))
  end
  return math.floor(wait + 0.5)
end

local function attempts_are_used_up(S, failures)
  local most = policy_of(S, 'max_attempts')
  return most > 0 and failures >= most
end
