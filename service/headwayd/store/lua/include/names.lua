-- @include commit frame attempts bundles endings
-- Names of messages, and how they ended (include/endings).
--
-- A message is known by the id that its sender gave, or by one made for it: '~<generation>-<ticket>', or
-- '~<generation>-d<sequence number>' if it was delayed when it was put. A reference says where it is kept: its ticket,
-- or 'd' and the sequence number (15 digits) while it is delayed.
--
-- x:ids tells the state and reference of given ids, and of made ones whose message has another reference by now:
--   'w' ref  in line or leased;  'd' sequence number  delayed;  'x' ref  dead;
--   'f' mark, ms, ':', ref, ':', digest  finished then; the digest is of the body, for given ids. Before the ms stands
--   a '0' if there was a result: it may be forgotten before the name is.
local TIDY_AT_ONCE = 500
local LOOKED_AT_ONCE = 1000   -- leases of attempts
local SCAN_AT_ONCE, SCAN_PAUSE_MS = 200, 50

-- The given id of an element and its put time; '' and 0 for a bare payload.
local function id_of(element)
  local id, put_at = read_frame(element)
  return id or '', put_at or 0
end

-- When the message was put that waits, or has just left the line, with this ticket, and of which no record tells it; 0
-- if nobody knows. What a look sees and nobody has booked yet was put now, as the step that books it will say. O(log n).
local function put_at_of(S, ticket, element)
  local _, put_at = id_of(element)
  if put_at > 0 then return put_at end
  if S.skipped and tonumber(ticket) > S.tail - S.pushes then return S.now end
  return put_time(S, tonumber(ticket))
end

-- The name that x:ids may know the message by; '' if its reference is its name.
local function name_of(element, record)
  if record and record.id ~= '' then return record.id end
  return (id_of(element))
end
local function is_given(name) return string.byte(name) ~= 126 end   -- '~'

local function padded(seq) return string.format('%015.0f', seq) end

-- Remembers how the message with this reference ended, or that its last lease has no say any more. O(log n).
local function remember(S, ref, record, mark, result)
  local is_plain = result == '' and has_pages(mark) and string.byte(ref) ~= 100
  if is_plain and mark == MARK.DONE then
    is_plain = record.failures == 0 and not has_flag(record.flags, FLAG.RELEASED)
  elseif is_plain then
    is_plain = not record or record.nonce == NO_NONCE
  end
  if is_plain then
    set_bit(S, bits_of(S, mark), ref)
  else
    redis.call('HSET', K.acked, 'n' .. ref, mark .. (record and record.nonce or NO_NONCE) .. result)
    touch_remembered(S, 'n' .. ref)
  end
end

-- The message gets another reference than this one: its last lease has no say there. O(log n).
local function leave_lease(S, ref, record)
  if record.nonce ~= NO_NONCE then remember(S, ref, record, MARK.BACK, '') end
  record.nonce, record.flags = NO_NONCE, without_flag(record.flags, FLAG.LAPSED)
end

-- A digest of payload and headers, but those that tell of the put: it is the same message in another trace.
local function digest_of(element)
  return string.sub(redis.sha1hex(body_of(element)), 1, 16)
end

-- Whether the name stands for the message with this reference, or for none. It is another's where a foreign client put a
-- frame, whose id nobody has asked for. O(1).
local function is_of(at, ref)
  return not at or at == ref or string.sub(at, 2) == ref   -- of what is delayed the reference begins with 'd', too
end
local function is_name_of(name, ref) return is_of(redis.call('HGET', K.ids, name), ref) end

-- Messages that end in the same way, with the same result, and whose names are finished together: finish_names.
local function new_ending(mark, result)
  return { mark = mark, result = result, names = {}, refs = {}, digests = {}, made_ms = 0, given_ms = 0 }
end
-- One of them, with its element if that is known. Where it was read just now it is not read again for its digest.
local function note_ended(S, ending, name, ref, element)
  if name == '' then return end
  local names = ending.names
  local at = #names + 1
  if at == 1 then
    ending.made_ms = policy_of(S, 'remember_ms')
    ending.given_ms = math.max(ending.made_ms, policy_of(S, 'dedupe_window_ms'))
  end
  local is_kept = element and element ~= '' and ending.given_ms > 0 and is_given(name)
  names[at], ending.refs[at], ending.digests[at] = name, ref, is_kept and digest_of(element) or ''
end

-- More names are remembered than may be: those of the oldest go, but not more than four for each that was added: some
-- may have been taken anew since this step counted them. O(k log n).
local function forget_oldest(S, added)
  S.n_finished = redis.call('ZCARD', K.forget)
  local over = math.max(0, S.n_finished - MAX_REMEMBERED_IDS)
  local oldest = over > 0 and redis.call('ZRANGE', K.forget, 0, math.min(over, 4 * added) - 1) or {}
  remove_fields(K.ids, oldest)
  remove_members(K.forget, oldest)
  S.n_finished = S.n_finished - #oldest
end

-- Messages with these names are finished: the names still count as known for the dedupe window, and tell the outcome
-- for `remember_ms`, or for as long as they are known if there was no result. O(k log n).
local function finish_names(S, ending)
  local names, refs = ending.names, ending.refs
  if not names[1] then return end
  local start = 'f' .. ending.mark .. (ending.result ~= '' and '0' or '') .. text_of(S.now) .. ':'
  local told, untils, gone, finished, n = {}, {}, {}, {}, 0
  for i, at in ipairs(fields_of(K.ids, names)) do
    local name, ref = names[i], refs[i]
    if is_of(at, ref) and not finished[name] then   -- a foreign client may have put it twice
      finished[name] = true
      local keep_ms = is_given(name) and ending.given_ms or ending.made_ms
      if keep_ms == 0 then
        gone[#gone + 1] = name
      else
        told[n + 1], told[n + 2] = name, start .. ref .. ':' .. ending.digests[i]
        untils[n + 1], untils[n + 2] = S.now + keep_ms, name
        n = n + 2
        tidy_by(S, S.now + keep_ms)
      end
    end
  end
  remove_fields(K.ids, gone)
  if n == 0 then return end
  set_fields(K.ids, told)
  local added = add_members(K.forget, untils)
  S.n_finished = S.n_finished and S.n_finished + added or redis.call('ZCARD', K.forget)
  if S.n_finished > MAX_REMEMBERED_IDS then forget_oldest(S, n / 2) end
end

-- The same for one message. O(log n).
local function finish_name(S, name, ref, mark, element, result)
  local ending = new_ending(mark, result)
  note_ended(S, ending, name, ref, element)
  finish_names(S, ending)
end

-- The message is at an end; its name is finished with those of its ending, whose caller does that. O(log n).
local function end_message(S, ref, record, element, ending)
  local name, mark, result = name_of(element, record), ending.mark, ending.result
  if S.watched_until > S.now then tell(S, 'E', ref, mark .. ' ' .. result) end
  note_ended(S, ending, name, ref, element)
  if name == '' or mark == MARK.DONE or (record and record.nonce ~= NO_NONCE) then
    remember(S, ref, record, mark, result)
  end
end

-- The message is at an end. O(log n).
local function finish(S, ref, record, element, mark, result)
  local ending = new_ending(mark, result)
  end_message(S, ref, record, element, ending)
  finish_names(S, ending)
end

-- How the message with this reference ended, as far as x:acked knows: mark and result; nil.
local function ending_of(S, ref)
  local noted = redis.call('HGET', K.acked, 'n' .. ref)
  if noted then
    local mark = string.sub(noted, 1, 1)
    if mark == MARK.BACK or mark == MARK.REPLACED then return nil end
    return mark, string.sub(noted, 22)
  end
  if string.byte(ref) == 100 then return nil end
  for mark in pairs(page_prefixes()) do
    if has_bit(S, mark, ref) then return mark, '' end
  end
  return nil
end

-- Where a message is by its ticket: 'w' (waits), 'l' (leased), 'x' (dead), 'f' (finished), nil.
local function find_ticket(S, ticket)
  if redis.call('HEXISTS', K.lease, ticket) == 1 or bundle_with(S, ticket) then return 'l' end
  if is_waiting(S, ticket) then return 'w' end
  if redis.call('HEXISTS', K.corpse, ticket) == 1 then return 'x' end
  return ending_of(S, ticket) and 'f' or nil
end

-- The same as find_name for a name that x:ids does not know: one that was made from a reference, spelled as it is made,
-- or none. Whether the message has another name as well is not looked at: it may stand deep in the line, where no step
-- reads. O(log n).
local function find_made(S, name)
  local generation, delayed, number = string.match(name, '^~(%x+)%-(d?)([1-9]%d*)$')
  if generation ~= S.gen or #number > 15 then return nil end
  local ref, state = number, nil
  if delayed == 'd' then
    ref = 'd' .. padded(tonumber(number))
    state = redis.call('ZSCORE', K.delayed, string.sub(ref, 2)) and 'd'
      or redis.call('HEXISTS', K.corpse, ref) == 1 and 'x' or ending_of(S, ref) and 'f'
  else
    state = find_ticket(S, ref)
  end
  if state == 'f' then return state, ref, (ending_of(S, ref)), 0, '' end
  return state, ref
end

-- Where the message with this name is: a state and its reference. 'w' waits, 'l' leased, 'd' delayed, 'x' dead, 'f'
-- finished; then also its mark, when it finished (ms), the digest of its body, and whether it had a result. nil if it is
-- not known. Writes nothing. O(log n).
local function find_name(S, name)
  local at = redis.call('HGET', K.ids, name)
  if not at then return find_made(S, name) end
  local state, ref = string.sub(at, 1, 1), string.sub(at, 2)
  if state == 'd' then return state, 'd' .. ref end
  if state == 'f' then
    local mark, ms, kept, digest = string.match(ref, '^(.)(%d+):(.-):(.*)$')
    return 'f', kept, mark, tonumber(ms), digest, string.byte(ms) == 48   -- '0'
  end
  if state == 'w' then
    state = find_ticket(S, ref)
    if state ~= 'w' and state ~= 'l' then return 'f', ref, MARK.TAKEN, S.now, '' end
  end
  return state, ref
end

-- The name is about to stand for a message in the queue again.
local function take_name(name)
  redis.call('ZREM', K.forget, name)
end

-- Whether a finished message's name still counts as known.
local function is_within_window(S, finished_at)
  return S.now < finished_at + policy_of(S, 'dedupe_window_ms')
end

-- Moves a message to the dead. O(log n).
local function bury(S, ref, element, record, cause)
  add(S, 'died', 1)
  redis.call('ZADD', K.dead, S.died, ref)
  redis.call('HSET', K.corpse, ref, pack_corpse(S.now, cause, record, element))
  tell(S, 'X', ref, record.error)
  local name = name_of(element, record)
  if name ~= '' and is_name_of(name, ref) then redis.call('HSET', K.ids, name, 'x' .. ref) end
end

-- Its time is over. There may be no record of one that waited. O(log n).
local function expire(S, ref, element, record)
  if policy_of(S, 'dead_letter_expired') == 1 then
    bury(S, ref, element, record or new_record(put_at_of(S, ref, element)), CAUSE.EXPIRED)
  else
    finish(S, ref, record, element, MARK.EXPIRED, '')
    add(S, 'n_expired', 1)
  end
end

-- Forgets what was remembered long enough, looks for names of messages that foreign clients took, and sets when to come
-- again. O(1) while it is not time; else bounded.
local function tidy(S)
  if S.tidy_at == 0 or S.tidy_at > S.now then return end
  local next_at, is_more = 0, false
  local function again(at) if at and (next_at == 0 or at < next_at) then next_at = at end end
  local function old_of(key, until_ms)
    local old = redis.call('ZRANGEBYSCORE', key, '-inf', until_ms, 'LIMIT', 0, TIDY_AT_ONCE)
    is_more = is_more or #old == TIDY_AT_ONCE
    return old
  end
  local function first_of(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

  local names = old_of(K.forget, S.now)
  remove_fields(K.ids, names)
  remove_members(K.forget, names)
  again(first_of(K.forget))

  local span = policy_of(S, 'remember_ms') + REMEMBER_TOUCH_MS
  local fields = old_of(K.acked_at, S.now - span)
  remove_fields(K.acked, fields)
  remove_members(K.acked_at, fields)
  local touched = first_of(K.acked_at)
  again(touched and touched + span)

  local looked_at = 0
  for _, attempt in ipairs(old_of(K.attempt_at, S.now)) do
    if looked_at >= LOOKED_AT_ONCE then
      is_more = true
      break
    end
    local lives, count = attempt_lives(S, attempt)
    looked_at = looked_at + count
    if lives then
      redis.call('ZADD', K.attempt_at, S.now + LOOK_AGAIN_MS, attempt)
    else
      redis.call('HDEL', K.attempts, attempt)
      redis.call('ZREM', K.attempt_at, attempt)
    end
  end
  again(first_of(K.attempt_at))

  if S.scan ~= '-1' then
    local found = redis.call('HSCAN', K.ids, S.scan, 'COUNT', SCAN_AT_ONCE)
    for i = 1, #found[2], 2 do
      local name, at = found[2][i], found[2][i + 1]
      if string.byte(at) == 119 then   -- 'w'
        local state, ref, mark = find_name(S, name)
        if state == 'f' then finish_name(S, name, ref, mark, nil, '') end
      end
    end
    local is_over = found[1] == '0' and S.scan_again == 0   -- else it may have passed some that were taken then
    if found[1] == '0' and not is_over then set(S, 'scan_again', 0) end
    set(S, 'scan', is_over and '-1' or found[1])
    if S.scan ~= '-1' then again(S.now + (S.scan == '0' and TIDY_EVERY_MS or SCAN_PAUSE_MS)) end
  end
  if is_more then
    next_at = S.now
  elseif next_at > 0 and S.scan == '-1' then
    next_at = math.max(next_at, S.now + TIDY_EVERY_MS)
  end
  set(S, 'tidy_at', next_at)
end
