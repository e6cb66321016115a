-- @include line
-- What time alone does: leases lapse, messages expire, delayed ones fall due, and what was remembered long enough is
-- forgotten. Up to and including now, in bounded steps.
local DUE_AT_ONCE = 500

-- Those that came back before and stand before one that lapses now have to be moved, MOST_MOVED of them at most. Where
-- they are many it is waited until as many lapse together as are worth it, at most LONGEST_WAIT_MS: else leases that lapse
-- one by one would move them each time. Returns how many may lapse at once now. O(log n).
local MANY_MOVED, MOVED_FOR_A_MS = 500, 20
local function lapsing(S)
  if S.returned < MANY_MOVED then return DUE_AT_ONCE end
  local last, oldest, overdue = 0, nil, redis.call('ZCOUNT', K.leases, '-inf', S.now)
  local function look_at(key, ticket_of)
    local latest = redis.call('ZREVRANGEBYSCORE', key, S.now, '-inf', 'LIMIT', 0, 1)[1]
    if not latest then return end
    last = math.max(last, tonumber(ticket_of(latest)))
    oldest = math.min(oldest or S.now, tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
  end
  look_at(K.leases, function(ticket) return ticket end)
  if S.n_bundled > 0 then
    look_at(K.bundle_at, function(step) return redis.call('ZSCORE', K.bundle_from, step) end)
    -- Of as many leases each as bundles have on average.
    local share = redis.call('ZCOUNT', K.bundle_at, '-inf', S.now) / redis.call('ZCARD', K.bundle_at)
    overdue = overdue + S.n_bundled * share
  end
  if not oldest then return 0 end
  local before = place_at_head(S, last)
  if before < MANY_MOVED or overdue >= DUE_AT_ONCE then return DUE_AT_ONCE end
  S.lapse_at = oldest + math.min(math.floor(before / MOVED_FOR_A_MS), LONGEST_WAIT_MS)
  return S.lapse_at > S.now and 0 or DUE_AT_ONCE
end

-- Leases whose deadline has come: an attempt is spent, but of what was given back (`give_back`); the messages go back to
-- the head, or to the dead. The last of
-- them come first: with deadlines in ticket order each batch goes before the one before. O(k log n).
local function lapse(S, most)
  local untied = 0
  while untied < most and S.n_bundled > 0 do
    local step = redis.call('ZREVRANGEBYSCORE', K.bundle_at, S.now, '-inf', 'LIMIT', 0, 1)[1]
    if not step then break end
    local bundle = read_bundle(S, step)
    untied = untied + bundle.left
    untie(S, bundle)
  end
  local tickets = redis.call('ZREVRANGEBYSCORE', K.leases, S.now, '-inf', 'LIMIT', 0, most)
  if #tickets == 0 then return 0 end
  local records, elements = fields_of(K.lease, tickets), fields_of(K.body, tickets)
  local back, lapsed = {}, 0
  for i = #tickets, 1, -1 do
    local ticket, record = tickets[i], unpack_record(records[i])
    local is_back = has_flag(record.flags, FLAG.BACK)
    if is_back then
      record.flags = without_flag(record.flags, FLAG.BACK)
    else
      record.failures, record.error, lapsed = record.failures + 1, 'the lease lapsed', lapsed + 1
      record.flags = with_flag(record.flags, FLAG.LAPSED)
    end
    if not is_back and attempts_are_used_up(S, record.failures) then
      bury(S, ticket, elements[i], record, CAUSE.ATTEMPTS)
    else
      back[#back + 1] = { ticket = tonumber(ticket), element = elements[i], record = record }
    end
  end
  drop_leases(S, tickets, false)
  give_back(S, back)
  redis.call('HINCRBY', K.meta, 'n_lapsed', lapsed)   -- not a part of S: few scripts need it
  return #tickets
end

-- Messages that wait or are delayed and whose time is over. Fewer go at once where it is far to them, and to the dead where
-- it takes long to find out when they were put. Returns whether there may be more. O(k log n + NEAR + MOST_PASSED).
local function expire_old(S)
  if S.expiring == 0 then return false end
  local most = DUE_AT_ONCE
  if policy_of(S, 'dead_letter_expired') == 1 then most = times_at_once(most) end
  local refs = redis.call('ZRANGEBYSCORE', K.expiry, '-inf', S.now, 'LIMIT', 0, most)
  if #refs == 0 then
    if redis.call('EXISTS', K.expiry) == 0 then set(S, 'expiring', 0) end
    return false
  end
  local tickets, seqs, way, is_more = {}, {}, {}, #refs == most
  for i, ref in ipairs(refs) do
    if string.byte(ref) == 100 then
      seqs[#seqs + 1] = string.sub(ref, 2)
    elseif is_waiting(S, ref) then   -- not taken by a foreign client
      if not is_within_reach(S, way, ref, true) then
        for left = #refs, i, -1 do refs[left] = nil end
        is_more = true
        break
      end
      tickets[#tickets + 1] = ref
    end
  end
  remove_members(K.expiry, refs)
  if #tickets > 0 then
    local elements, records = take_out(S, tickets)
    for i, ticket in ipairs(tickets) do expire(S, ticket, elements[i], records[i] or nil) end
  end
  if #seqs > 0 then
    local elements, records = take_delayed(S, seqs)
    for i, seq in ipairs(seqs) do expire(S, 'd' .. seq, elements[i], records[i]) end
  end
  return is_more
end

-- Delayed messages that are due join the tail, in due order, ties in put order. May overfill the line. O(k log n).
local function promote(S, most)
  local due = redis.call('ZRANGEBYSCORE', K.delayed, '-inf', S.now, 'LIMIT', 0, most)
  if #due == 0 then return 0 end
  local list = {}
  local elements, records = take_delayed(S, due)
  for i, element in ipairs(elements) do
    keep_made_id(S, 'd' .. due[i], element, records[i])
    local record = records[i]
    list[i] = { element = element, name = name_of(element, record), expires_at = record.expires_at, record = record,
                from = 'd' .. due[i] }
  end
  join_tail(S, list)
  return #due
end

-- All of it, but what moves messages only while it is sure where they stand. True if there may be more that is due
-- already.
local function do_what_is_due(S)
  -- Nothing is due before what was told last (see `commit`).
  if not S.is_new and (S.due_said == 0 or S.due_said > S.now) then return S.aged < S.tail end
  keep_keys()
  local most, lapsed, is_expiring, joined = 0, 0, false, 0
  if is_unsure(S) then
    S.is_put_off = true
  else
    most = lapsing(S)
    lapsed = most > 0 and lapse(S, most) or 0
    is_expiring = expire_old(S)
    joined = promote(S, DUE_AT_ONCE)
  end
  lose_places(S)
  tidy(S)
  return lapsed > 0 and lapsed == most or is_expiring or joined == DUE_AT_ONCE or S.aged < S.tail
end
