-- @include keys time policy record
-- A queue's state: read it (load), write down what foreign clients did meanwhile (open), write it back (commit).
--
-- Tickets. The line is a Redis list whose right end is the head. The first elements from the head are those in
-- x:returned, in ticket order; behind them the i-th element has ticket head + i. `head` counts what ever left the line
-- for the first time, so tickets need no storage of their own. Foreign clients push and pop without telling: `load`
-- infers it from the length and from pressure's counters, and it is booked before anything else is done.
--
-- x:meta fields: gen (this life's name), born (ms), head, seen_len, seen_prod, seen_cons (what the last script left),
-- seq (last sequence number of the delayed), line (last number in the producer line), tick_at (ms of the last entry of
-- x:times), due_said (next due time told to the processes), offer_at (ms since when offer_to, a string, has been asked
-- to come), paused, n_* (totals), put_sum, put_sum_at, ack_sum, ack_sum_at (decaying sums for the rates), and the
-- policy.
local CORE = { 'gen', 'offer_to', 'head', 'seen_len', 'seen_prod', 'seen_cons', 'seq', 'line', 'tick_at', 'due_said',
  'offer_at', 'paused', 'n_accepted', 'n_acked', 'n_expired', 'n_withdrawn', 'n_foreign', 'put_sum', 'put_sum_at',
  'ack_sum', 'ack_sum_at', 'born' }
local FIRST_COUNTER = 3   -- all but the first two are numbers
-- A queue that Headway knows carries an expiry of its bound key in the year 9999. A foreign delete takes it away and a
-- foreign create does not bring it back: so a new life is never taken for the old one.
local LIFE_MARK_AT = '253402300000000'
local LIFE_MARK_LEAST = 100000000000000
local RATE_SPAN_MS = 60000   -- the decaying sums forget with this time constant
local TICK_MS = 100          -- resolution of put times of bare payloads
local OFFER_MS = 2000        -- how long the first in line may leave an offer untaken
local CHUNK = 1000           -- most values unpacked into one command

local function text_of(number)
  if number == math.floor(number) then return string.format('%.0f', number) end
  return string.format('%.6f', number)
end

local function each_chunk(values, per_chunk, act)
  for from = 1, #values, per_chunk do
    local part = {}
    for i = from, math.min(from + per_chunk - 1, #values) do part[#part + 1] = values[i] end
    act(part)
  end
end

local function remove_fields(key, fields)
  each_chunk(fields, CHUNK, function(part) redis.call('HDEL', key, unpack(part)) end)
end
local function remove_members(key, members)
  each_chunk(members, CHUNK, function(part) redis.call('ZREM', key, unpack(part)) end)
end
-- Field, value, field, value … of a hash; score, member, score, member … of a sorted set; elements of a list.
local function set_fields(key, pairs_list)
  each_chunk(pairs_list, 2 * CHUNK, function(part) redis.call('HSET', key, unpack(part)) end)
end
local function add_members(key, pairs_list)
  each_chunk(pairs_list, 2 * CHUNK, function(part) redis.call('ZADD', key, unpack(part)) end)
end
local function push_tail(elements)
  each_chunk(elements, CHUNK, function(part) redis.call('LPUSH', K.q, unpack(part)) end)
end
local function push_head(elements)
  each_chunk(elements, CHUNK, function(part) redis.call('RPUSH', K.q, unpack(part)) end)
end

local function set(S, name, value)
  S[name] = value
  S.dirty[name] = true
end
local function add(S, name, amount) set(S, name, S[name] + amount) end

-- Adds n events to a decaying sum; sum / RATE_SPAN_MS is the rate.
local function decayed(S, name)
  return S[name] * math.exp(-math.max(S.now - S[name .. '_at'], 0) / RATE_SPAN_MS)
end
local function count_rate(S, name, n)
  set(S, name, decayed(S, name) + n)
  set(S, name .. '_at', S.now)
end

-- Reads the queue's state and works out what foreign clients did; writes nothing. nil if there is no such queue.
-- O(1).
local function load()
  local strings = redis.call('MGET', K.bound, K.produced_messages, K.consumed_messages)
  if not strings[1] then return nil end
  local S = { now = NOW, dirty = {}, bound = tonumber(strings[1]) or 0,
              prod = tonumber(strings[2]) or 0, cons = tonumber(strings[3]) or 0,
              len = redis.call('LLEN', K.q), closed = redis.call('EXISTS', K.closed) == 1, pops = 0, pushes = 0 }
  local meta = redis.call('HMGET', K.meta, unpack(CORE))
  S.gen, S.offer_to = meta[1], meta[2] or ''
  for i = FIRST_COUNTER, #CORE do S[CORE[i]] = tonumber(meta[i] or 0) end
  S.is_new = not S.gen or redis.call('PTTL', K.bound) < LIFE_MARK_LEAST
  if S.is_new then
    S.is_remade = S.gen and true or false
    S.gen, S.offer_to = ARGV[1], ''
    for i = FIRST_COUNTER, #CORE do S[CORE[i]] = 0 end
    S.seen_len, S.seen_prod, S.seen_cons, S.n_accepted, S.born = S.len, S.prod, S.cons, S.len, S.now
    S.returned = 0
    return S
  end
  S.returned = redis.call('ZCARD', K.returned)
  local more = S.len - S.seen_len
  local produced = math.max(0, S.prod - S.seen_prod)
  local consumed = math.max(0, S.cons - S.seen_cons)
  -- A foreign put counts after it pushed, and a foreign get from a closed queue does not count at all: believe
  -- whichever of counters and length shows more.
  S.pops = math.max(consumed, produced - more, 0)
  S.pushes = more + S.pops
  if S.pops > 0 or S.pushes > 0 then
    add(S, 'seen_prod', S.pushes)
    add(S, 'seen_cons', S.pops)
    add(S, 'n_accepted', S.pushes)
    add(S, 'n_foreign', S.pops)
    set(S, 'seen_len', S.len)
  end
  return S
end

-- Ticket of the last message in the line.
local function tail_ticket(S) return S.head + S.len - S.returned end

-- Remembers that messages from `ticket` on were put now. O(1), at most one entry in TICK_MS.
local function note_time(S, ticket)
  if S.now - S.tick_at < TICK_MS then return end
  redis.call('RPUSH', K.times, text_of(ticket) .. ':' .. text_of(S.now))
  set(S, 'tick_at', S.now)
end

-- When the message with this ticket was put, 0 if nobody knows. Entries that the head has passed are dropped.
-- Tickets must be asked in growing order. Amortised O(1).
local function time_of(S, ticket)
  if not S.times then
    S.times = redis.call('LRANGE', K.times, 0, 1)
  end
  while S.times[2] and tonumber(string.match(S.times[2], '^%d+')) <= ticket do
    redis.call('LPOP', K.times)
    S.times = redis.call('LRANGE', K.times, 0, 1)
  end
  if not S.times[1] then return 0 end
  local from, at = string.match(S.times[1], '^(%d+):(%d+)$')
  if tonumber(from) <= ticket then return tonumber(at) end
  return 0
end

local function forget_own_keys()
  local keys = {}
  for _, name in ipairs(own_names()) do keys[#keys + 1] = K[name] end
  redis.call('DEL', unpack(keys))
end

-- Drops what is known of the messages that foreign clients took: the first of the returned, then from the head on.
-- O(pops that had anything known of them).
local function book_pops(S)
  local from_returned = math.min(S.pops, S.returned)
  local gone = {}
  if from_returned > 0 then
    gone = redis.call('ZRANGE', K.returned, 0, from_returned - 1)
    redis.call('ZREMRANGEBYRANK', K.returned, 0, from_returned - 1)
    S.returned = S.returned - from_returned
    remove_fields(K.side, gone)
  end
  local from_line = S.pops - from_returned
  if from_line > 0 then
    local known = redis.call('HLEN', K.side)
    gone = {}
    if known > S.returned then
      if known < from_line then
        for _, ticket in ipairs(redis.call('HKEYS', K.side)) do
          local number = tonumber(ticket)
          if number > S.head and number <= S.head + from_line then gone[#gone + 1] = ticket end
        end
      else
        for number = S.head + 1, S.head + from_line do gone[#gone + 1] = text_of(number) end
      end
      remove_fields(K.side, gone)
    end
    add(S, 'head', from_line)
  end
end

-- Why there is no such queue.
local function absence()
  if redis.call('EXISTS', K.deleting) == 1 or redis.call('EXISTS', K.closed) == 1 then return T.QUEUE_DELETED end
  if redis.call('EXISTS', K.meta) == 1 then forget_own_keys() end
  return T.QUEUE_NOT_FOUND
end

-- Reads the state and books what foreign clients did. nil and a status if there is no such queue.
local function open()
  local S = load()
  if not S then return nil, absence() end
  if S.is_new then
    if S.is_remade then forget_own_keys() end
    local fields = { 'gen', S.gen }
    for _, row in ipairs(policy_defaults()) do
      if row[1] ~= 'bound' then
        fields[#fields + 1] = row[1]
        fields[#fields + 1] = row[2]
      end
    end
    redis.call('HSET', K.meta, unpack(fields))
    for i = FIRST_COUNTER, #CORE do S.dirty[CORE[i]] = true end
    redis.call('PEXPIREAT', K.bound, LIFE_MARK_AT)
    return S
  end
  if S.pops > 0 then
    book_pops(S)
    time_of(S, S.head + 1)
  end
  if S.pushes > 0 then
    note_time(S, tail_ticket(S) - S.pushes + 1)
    count_rate(S, 'put_sum', S.pushes)
  end
  return S
end

local function policy_of(S, name)
  if not S.policy then S.policy = {} end
  if S.policy[name] == nil then
    local kept = redis.call('HGET', K.meta, name)
    if not kept then
      for _, row in ipairs(policy_defaults()) do
        if row[1] == name then kept = row[2] end
      end
    end
    S.policy[name] = tonumber(kept)
  end
  return S.policy[name]
end

local function room_of(S)
  if S.bound == 0 then return math.huge end
  return math.max(0, S.bound - S.len)
end

local function role_is_free(role) return redis.call('EXISTS', K[role .. '_free']) == 1 end
local function holder_of(role) return redis.call('GET', K[role]) or '' end

-- pressure's not_full has one token exactly while there is room. While a foreign client holds the producer role it may
-- have popped the token for the push it is about to do, so then a token is added only if this step made room.
local function mend_not_full(S, made_room)
  local tokens = redis.call('LLEN', K.not_full)
  if S.bound > 0 and S.len >= S.bound then
    if tokens > 0 then redis.call('DEL', K.not_full) end
  elseif tokens > 1 then
    redis.call('LTRIM', K.not_full, 0, 0)
  elseif tokens == 0 and (made_room or role_is_free('producer')) then
    redis.call('LPUSH', K.not_full, '0')
  end
end

-- Whoever is first in the producer line and whose process still listens to its channel; the others are dropped. If
-- `offers`, tells it that it is its turn; a process that lets its turn pass for OFFER_MS is dropped, too. O(dropped),
-- at most 100.
local function first_producer(S, me, offers)
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', K.producers, 0, 0)[1]
    if not first or first == me then return first end
    local channel = ARGV[2] .. WAKE_CHANNEL .. (string.match(first, '^(.*)#%d+$') or first)
    local is_overdue = offers and S.offer_to == first and S.now - S.offer_at > OFFER_MS
    if not is_overdue then
      if not offers then
        if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then return first end
      elseif redis.call('PUBLISH', channel, BASE) > 0 then
        if S.offer_to ~= first then
          set(S, 'offer_to', first)
          set(S, 'offer_at', S.now)
        end
        return first
      end
    end
    redis.call('ZREM', K.producers, first)
  end
  return nil
end

-- When time alone next changes something here: the first due message or the first deadline. 0 = never.
local function next_due()
  local due = 0
  for _, key in ipairs({ K.delayed, K.leases }) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
    if at > 0 and (due == 0 or at < due) then due = at end
  end
  return due
end

-- Writes the state back, mends pressure's token, calls the next producer if there is room, and tells all processes of
-- an earlier next due time. Returns that time.
local function commit(S, made_room, me)
  S.len = redis.call('LLEN', K.q)
  if S.len ~= S.seen_len then set(S, 'seen_len', S.len) end
  mend_not_full(S, made_room)
  if room_of(S) > 0 and redis.call('EXISTS', K.producers) == 1 then
    if not me or redis.call('ZSCORE', K.producers, me) == false then first_producer(S, nil, true) end
  end
  local due = next_due()
  if due > 0 and (S.due_said == 0 or due < S.due_said or S.due_said <= S.now) and due ~= S.due_said then
    set(S, 'due_said', due)
    redis.call('PUBLISH', ARGV[2] .. DUE_CHANNEL, text_of(due) .. ' ' .. BASE)
  end
  local fields = {}
  for name in pairs(S.dirty) do
    fields[#fields + 1] = name
    fields[#fields + 1] = type(S[name]) == 'number' and text_of(S[name]) or S[name]
  end
  if #fields > 0 then redis.call('HSET', K.meta, unpack(fields)) end
  return due
end
