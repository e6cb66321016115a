-- @include commit frame attempts bundles
-- Names of messages, and how they ended.
--
-- A message is known by the id that its sender gave, or by one made for it: '~<generation>-<ticket>', or
-- '~<generation>-d<sequence number>' if it was delayed when it was put. A reference says where it is kept: its ticket,
-- or 'd' and the sequence number (15 digits) while it is delayed.
--
-- x:ids tells the state and reference of given ids, and of made ones whose message has another reference by now:
--   'w' ref  in line or leased;  'd' sequence number  delayed;  'x' ref  dead;
--   'f' mark, ms, ':', ref, ':', digest  finished then; the digest is of the body, for given ids.
-- x:acked tells how messages ended, and which leases have no say any more, for `remember_ms`: one bit per ticket, in
-- pages of 4096, for those acked by their only lease without a result (field 'p<page>') and those withdrawn or expired
-- without ever having been leased ('w<page>', 'x<page>'); for all others field 'n<ref>': a mark, the last lease's nonce,
-- the result.
local MARK = {
  DONE = 'a',       -- acked
  BACK = 'r',       -- the lease was given back and the message has another reference now
  REPLACED = 'p',   -- another message took over
  WITHDRAWN = 'w',
  EXPIRED = 'x',
  TAKEN = 'u',      -- by a foreign client
}
local PAGE = 4096
local PAGE_BYTES = PAGE / 8
local REMEMBER_TOUCH_MS = 1000
local TIDY_AT_ONCE = 500
local SCAN_AT_ONCE, SCAN_PAUSE_MS = 200, 50

-- The given id of an element and its put time; '' and 0 for a bare payload.
local function id_of(element)
  local id, put_at = read_frame(element)
  return id or '', put_at or 0
end

-- The name that x:ids may know the message by; '' if its reference is its name.
local function name_of(element, record)
  if record and record.id ~= '' then return record.id end
  return (id_of(element))
end
local function is_given(name) return string.byte(name) ~= 126 end   -- '~'

local function padded(seq) return string.format('%015.0f', seq) end

local function touch_remembered(S, field)
  local written = tonumber(redis.call('ZSCORE', K.acked_at, field) or 0)
  if S.now - written < REMEMBER_TOUCH_MS then return end
  redis.call('ZADD', K.acked_at, S.now, field)
  tidy_by(S, S.now + policy_of(S, 'remember_ms') + REMEMBER_TOUCH_MS)
end

-- Bits, one per ticket, for the endings that need no more than that. A page is kept as it was read, with the bytes that
-- this call has changed beside it; commit puts both together. To cut a page in pieces for every bit costs as much as all
-- the rest of an ack.
local function page_prefixes() return { [MARK.DONE] = 'p', [MARK.WITHDRAWN] = 'w', [MARK.EXPIRED] = 'x' } end

-- The pages of a mark that this call has looked at, and which it looked at last.
local function bits_of(S, mark)
  S.bits = S.bits or {}
  S.bits[mark] = S.bits[mark] or { prefix = page_prefixes()[mark], pages = {} }
  return S.bits[mark]
end

-- The page that has the bit of a ticket, a number.
local function page_of(bits, ticket)
  local number = math.floor(ticket / PAGE)
  local page = bits.pages[number]
  if not page then
    local field = bits.prefix .. text_of(number)
    local was = redis.call('HGET', K.acked, field) or string.rep('\0', PAGE_BYTES)
    page = { field = field, was = was, bytes = {}, from = number * PAGE, to = number * PAGE + PAGE - 1 }
    bits.pages[number] = page
  end
  bits.last = page
  return page
end

local function has_bit(S, mark, ticket)
  ticket = tonumber(ticket)
  local page = page_of(bits_of(S, mark), ticket)
  local at = ticket - page.from
  local byte_at = math.floor(at / 8) + 1
  return math.floor((page.bytes[byte_at] or string.byte(page.was, byte_at)) / 2 ^ (at % 8)) % 2 == 1
end

-- A text with some of its bytes changed. O(bytes changed, in order).
local function with_bytes(was, bytes)
  local places = {}
  for at in pairs(bytes) do places[#places + 1] = at end
  table.sort(places)
  local parts, from = {}, 1
  for _, at in ipairs(places) do
    if at > from then parts[#parts + 1] = string.sub(was, from, at - 1) end
    parts[#parts + 1] = string.char(bytes[at])
    from = at + 1
  end
  parts[#parts + 1] = string.sub(was, from)
  return table.concat(parts)
end

local function write_page(S, page)
  if next(page.bytes) == nil then return end
  redis.call('HSET', K.acked, page.field, with_bytes(page.was, page.bytes))
  touch_remembered(S, page.field)
end

local function write_pages(S)
  for _, bits in pairs(S.bits) do
    for _, page in pairs(bits.pages) do write_page(S, page) end
  end
end

-- The same page, which is to be written back.
local function page_to_change(S, bits, ticket)
  S.at_commit = write_pages
  local page = bits.last
  if page and ticket >= page.from and ticket <= page.to then return page end
  return page_of(bits, ticket)
end

local function set_bit(S, bits, ticket)
  ticket = tonumber(ticket)
  local page = page_to_change(S, bits, ticket)
  local at = ticket - page.from
  local place = at % 8
  local byte_at, value = (at - place) / 8 + 1, 2 ^ place
  local byte = page.bytes[byte_at] or string.byte(page.was, byte_at)
  if byte % (2 * value) >= value then return end
  page.bytes[byte_at] = byte + value
end

-- The same for all tickets from one to another.
local function set_bits(S, bits, first, last)
  local ticket = first
  while ticket <= last do
    if ticket % 8 == 0 and ticket + 7 <= last then
      local page = page_to_change(S, bits, ticket)
      page.bytes[(ticket - page.from) / 8 + 1] = 255
      ticket = ticket + 8
    else
      set_bit(S, bits, ticket)
      ticket = ticket + 1
    end
  end
end

-- Remembers how the message with this reference ended, or that its last lease has no say any more. O(log n).
local function remember(S, ref, record, mark, result)
  local is_plain = result == '' and page_prefixes()[mark] and string.byte(ref) ~= 100
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

-- A digest of payload and headers, but those that tell of the put: it is the same message in another trace.
local function digest_of(element)
  return string.sub(redis.sha1hex(body_of(element)), 1, 16)
end

-- The message with this name is finished: the name still counts as known for the dedupe window, and tells the outcome
-- for `remember_ms`. O(log n).
local function finish_name(S, name, ref, mark, element)
  if name == '' then return end
  local keep_ms = policy_of(S, 'remember_ms')
  local digest = ''
  if is_given(name) then
    keep_ms = math.max(keep_ms, policy_of(S, 'dedupe_window_ms'))
    digest = element and digest_of(element) or ''
  end
  if keep_ms == 0 then
    redis.call('HDEL', K.ids, name)
    return
  end
  redis.call('HSET', K.ids, name, 'f' .. mark .. text_of(S.now) .. ':' .. ref .. ':' .. digest)
  redis.call('ZADD', K.forget, S.now + keep_ms, name)
  tidy_by(S, S.now + keep_ms)
  local over = redis.call('ZCARD', K.forget) - MAX_REMEMBERED_IDS
  if over > 0 then
    local oldest = redis.call('ZRANGE', K.forget, 0, math.min(over, 4) - 1)
    remove_fields(K.ids, oldest)
    remove_members(K.forget, oldest)
  end
end

-- The message is at an end. O(log n).
local function finish(S, ref, record, element, mark, result)
  local name = name_of(element, record)
  tell(S, 'E', ref, mark .. ' ' .. result)
  finish_name(S, name, ref, mark, element)
  if name == '' or mark == MARK.DONE or (record and record.nonce ~= NO_NONCE) then
    remember(S, ref, record, mark, result)
  end
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

-- Where the message with this name is: a state and its reference. 'w' waits, 'l' leased, 'd' delayed, 'x' dead, 'f'
-- finished; then also its mark, when it finished (ms), and the digest of its body. nil if it is not known. Writes
-- nothing. O(log n).
local function find_name(S, name)
  local at = redis.call('HGET', K.ids, name)
  if not at then
    local generation, delayed, number = string.match(name, '^~(%x+)%-(d?)(%d+)$')
    if generation ~= S.gen or #number > 15 then return nil end
    if delayed == 'd' then
      local seq = padded(tonumber(number))
      if redis.call('ZSCORE', K.delayed, seq) then return 'd', 'd' .. seq end
      if redis.call('HEXISTS', K.corpse, 'd' .. seq) == 1 then return 'x', 'd' .. seq end
      local mark = ending_of(S, 'd' .. seq)
      if mark then return 'f', 'd' .. seq, mark, 0, '' end
      return nil
    end
    local ticket = text_of(tonumber(number))
    local state = find_ticket(S, ticket)
    return state, ticket, state == 'f' and ending_of(S, ticket) or nil, 0, ''
  end
  local state, ref = string.sub(at, 1, 1), string.sub(at, 2)
  if state == 'd' then return state, 'd' .. ref end
  if state == 'f' then
    local mark, ms, kept, digest = string.match(ref, '^(.)(%d+):(.-):(.*)$')
    return 'f', kept, mark, tonumber(ms), digest
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
  if name ~= '' then redis.call('HSET', K.ids, name, 'x' .. ref) end
end

-- Its time is over. O(log n).
local function expire(S, ref, element, record)
  if policy_of(S, 'dead_letter_expired') == 1 then
    bury(S, ref, element, record or new_record((select(2, id_of(element)))), CAUSE.EXPIRED)
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

  for _, attempt in ipairs(old_of(K.attempt_at, S.now)) do
    if attempt_lives(S, attempt) then
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
        if state == 'f' then finish_name(S, name, ref, mark, nil) end
      end
    end
    set(S, 'scan', found[1] == '0' and '-1' or found[1])
    if S.scan ~= '-1' then again(S.now + SCAN_PAUSE_MS) end
  end
  if is_more then
    next_at = S.now
  elseif next_at > 0 and S.scan == '-1' then
    next_at = math.max(next_at, S.now + TIDY_EVERY_MS)
  end
  set(S, 'tidy_at', next_at)
end
