-- @include line
-- Who may settle what. A lease is named by generation, ticket and nonce (which holds the
-- attempt); all are compared whole.
--
-- x:acked remembers for `remember_ms` which tickets were settled: one bit per ticket, in pages of 4096 (field
-- 'p<page>'), for those acked by their only lease; the nonce (field 'n<ticket>', led by 'a' for acked or 'r' for given
-- back) for all others.
local PAGE = 4096
local PAGE_BYTES = PAGE / 8
local REMEMBER_TOUCH_MS = 1000

local function touch_remembered(S, field)
  local written = tonumber(redis.call('ZSCORE', K.acked_at, field) or 0)
  if S.now - written < REMEMBER_TOUCH_MS then return end
  redis.call('ZADD', K.acked_at, S.now, field)
  local old = redis.call('ZRANGEBYSCORE', K.acked_at, '-inf', S.now - policy_of(S, 'remember_ms') - REMEMBER_TOUCH_MS,
    'LIMIT', 0, 8)
  if #old > 0 then
    redis.call('ZREM', K.acked_at, unpack(old))
    redis.call('HDEL', K.acked, unpack(old))
  end
end

-- The bits of a page as they stand in this call; `write_pages` writes back those that changed.
local function page_of(S, page)
  if not S.pages then S.pages, S.changed_pages = {}, {} end
  if not S.pages[page] then
    S.pages[page] = redis.call('HGET', K.acked, 'p' .. text_of(page)) or string.rep('\0', PAGE_BYTES)
  end
  return S.pages[page]
end

local function bit_of(ticket)
  local page = math.floor(ticket / PAGE)
  local at = ticket - page * PAGE
  return page, math.floor(at / 8) + 1, 2 ^ (at % 8)
end

local function has_bit(S, ticket)
  local page, byte_at, mask = bit_of(ticket)
  return math.floor(string.byte(page_of(S, page), byte_at) / mask) % 2 == 1
end

local function write_pages(S)
  for page in pairs(S.changed_pages or {}) do
    local field = 'p' .. text_of(page)
    redis.call('HSET', K.acked, field, S.pages[page])
    touch_remembered(S, field)
  end
  S.changed_pages = {}
end

local function remember_settled(S, ticket, record, mark)
  if mark == 'a' and record.failures == 0 and not has_flag(record.flags, FLAG.RELEASED) then
    if has_bit(S, ticket) then return end
    local page, byte_at, mask = bit_of(ticket)
    local bits = S.pages[page]
    S.pages[page] = string.sub(bits, 1, byte_at - 1) .. string.char(string.byte(bits, byte_at) + mask)
      .. string.sub(bits, byte_at + 1)
    S.changed_pages[page] = true
  else
    local field = 'n' .. text_of(ticket)
    redis.call('HSET', K.acked, field, mark .. record.nonce)
    touch_remembered(S, field)
  end
end

-- What a token that is not a live lease is: T.LAPSED (its message waits, and nobody took it since), T.ALREADY_ACKED,
-- T.STALE, T.DEAD or T.GONE; for LAPSED and DEAD also the record.
local function afterlife(S, ticket, nonce)
  local name = text_of(ticket)
  local side = redis.call('HGET', K.side, name)
  if side then
    local record = unpack_record(side)
    if record.nonce ~= nonce or not redis.call('ZSCORE', K.returned, name) then return T.STALE end
    if has_flag(record.flags, FLAG.LAPSED) then return T.LAPSED, record end
    return T.STALE
  end
  local noted = redis.call('HGET', K.acked, 'n' .. name)
  if noted then
    if string.sub(noted, 2) ~= nonce then return T.STALE end
    return string.sub(noted, 1, 1) == 'a' and T.ALREADY_ACKED or T.STALE
  end
  local corpse = redis.call('HGET', K.corpse, name)
  if corpse then
    local record = unpack_both(corpse)
    if record.nonce == nonce then return T.DEAD, record end
    return T.STALE
  end
  if has_bit(S, ticket) then return T.ALREADY_ACKED end
  return T.GONE
end

-- Finds the leases named by ARGV from `from` on: triples generation, ticket, nonce. Calls act(i, ticket, record) for
-- each that is live (true = it ends the lease, so that the same lease named again is no longer live), and other(i,
-- ticket, status, record) for each that is not. O(k).
local function each_lease(S, from, count, act, other)
  local tickets = {}
  for i = 1, count do tickets[i] = ARGV[from + 3 * (i - 1) + 1] end
  local records = {}
  each_chunk(tickets, CHUNK, function(part)
    for _, record in ipairs(redis.call('HMGET', K.lease, unpack(part))) do records[#records + 1] = record end
  end)
  local seen = {}
  for i = 1, count do
    local at = from + 3 * (i - 1)
    local ticket, nonce = ARGV[at + 1], ARGV[at + 2]
    local packed = not seen[ticket] and (records[i] or redis.call('HGET', K.lease, ticket))   -- taken up again just now?
    local record = packed and unpack_record(packed)
    if ARGV[at] ~= S.gen then
      other(i, ticket, T.GONE)
    elseif record and record.nonce == nonce then
      seen[ticket] = act(i, ticket, record)
    elseif record then
      other(i, ticket, T.STALE)
    else
      other(i, ticket, afterlife(S, tonumber(ticket), nonce))
    end
  end
end

local function drop_leases(tickets)
  if #tickets == 0 then return end
  remove_members(K.leases, tickets)
  remove_fields(K.lease, tickets)
  remove_fields(K.body, tickets)
end

-- Acks the `count` leases named by ARGV from `from` on. Fills `results` with status and failures for each. Returns how
-- many messages are done. O(k log n).
local function ack_leases(S, from, count, results)
  local done, ended = {}, 0
  local function finish(i, ticket, record, element)
    finish_id(S, (id_of(element)))
    remember_settled(S, tonumber(ticket), record, 'a')
    results[i] = { T.ACKED, record.failures }
    ended = ended + 1
  end
  local has_ids = redis.call('EXISTS', K.ids) == 1   -- only then the elements are looked at
  each_lease(S, from, count, function(i, ticket, record)
    finish(i, ticket, record, has_ids and redis.call('HGET', K.body, ticket) or '')
    done[#done + 1] = ticket
    return true
  end, function(i, ticket, status, record)
    if status == T.LAPSED then
      finish(i, ticket, record, pull_returned(S, ticket))
      S.made_room = true
    else
      results[i] = { status, record and record.failures or 0 }
    end
  end)
  drop_leases(done)
  write_pages(S)
  if ended > 0 then
    add(S, 'n_acked', ended)
    count_rate(S, 'ack_sum', ended)
  end
  return ended
end
