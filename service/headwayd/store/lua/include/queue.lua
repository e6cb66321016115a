-- @include keys time limits policy record places meta put_times
-- A queue's state: read it (load), write down what foreign clients did meanwhile (open). See `commit` for its way back.
--
-- Tickets. The line is a Redis list whose right end is the head. The first elements from the head are those in
-- x:returned, in ticket order; behind them stand the tickets from head + 1 to tail, in order, without those in x:gaps.
-- `head` is the last ticket that left the line from its front, `tail` the last that joined, so a place needs no storage
-- of its own. See `places` for what was taken from the middle. Foreign clients push and pop without telling: `load`
-- infers it from the length and from pressure's counters, and it is booked before anything else is done.
--
-- A queue that Headway knows carries an expiry of its bound key in the year 9999. A foreign delete takes it away and a
-- foreign create does not bring it back: so a new life is never taken for the old one.
local LIFE_MARK_AT = '253402300000000'
local LIFE_MARK_LEAST = 100000000000000
local RATE_SPAN_MS = 60000   -- the decaying sums forget with this time constant
local OFFER_MS = 2000        -- how long the first in line may leave an offer untaken
local CREATING_MS = 1000     -- how long a foreign client may take to make a queue in its four steps
local AGED_AT_ONCE = 1000    -- most foreign messages given the queue's time to live in one step

-- Adds n events to a decaying sum; sum / RATE_SPAN_MS is the rate.
local function decayed(S, name)
  return S[name] * math.exp(-math.max(S.now - S[name .. '_at'], 0) / RATE_SPAN_MS)
end
local function count_rate(S, name, n)
  set(S, name, decayed(S, name) + n)
  set(S, name .. '_at', S.now)
end

-- Keys that most queues do not have. A step looks once, when it begins, how many of them there are (S.extras), and for
-- one by itself only if there are any. So whoever makes one of them within a step says so: S.extras = 1.
local function count_extras()
  return redis.call('EXISTS', K.closed, K.returned, K.side, K.progress, K.delayed, K.producers, K.place_at)
end
local function has_extra(S, key) return S.extras > 0 and redis.call('EXISTS', key) == 1 end

local function role_is_free(role)
  return redis.call('EXISTS', role == 'producer' and K.producer_free or K.consumer_free) == 1
end

local function holder_of(role) return redis.call('GET', role == 'producer' and K.producer or K.consumer) or '' end

-- When it was seen last that a role's holder acted without counting (ms), how much had been seen by then, and the name
-- by which it had the role.
local function act_of(S, role)
  local noted = rawget(S, role .. '_acted') or redis.call('HGET', K.meta, role .. '_acted') or ''
  local at, seen, name = string.match(noted, '^(%d+) (%d+) (.*)$')
  return at or '0', seen or '', name or ''
end

-- More was seen of what the holders of a role do than they have counted; `acts` of it in this step. Each does one thing
-- and counts it before it gives its role back, if at all. So the last of them may still do so while nobody else has the
-- role; what others did is not counted any more, and what is counted next is something else.
local function note_uncounted(S, role, seen, counted, acts)
  local holder = holder_of(role)
  if role_is_free(role) then
    set(S, seen, counted)
  elseif acts > 0 then
    set(S, seen, math.min(S[seen], counted + acts))
    set(S, role .. '_acted', text_of(S.now) .. ' ' .. text_of(S[seen]) .. ' ' .. holder)
  else
    local _, noted, name = act_of(S, role)   -- of less than was seen: a version that notes nothing has seen more since
    if noted == text_of(S[seen]) and name ~= holder then set(S, seen, counted) end
  end
end

-- Whether it was seen just now that a role's holder acted, and it has not counted that: until then it acts no more. That
-- is believed for a short time only: then another one of its name may have the role.
local BELIEVED_MS = 100
local function has_acted(S, role, uncounted)
  return uncounted > 0 and math.abs(S.now - act_of(S, role)) < BELIEVED_MS
end

-- Whether a foreign producer and a foreign consumer are both amid something: then the one may have pushed and the other
-- popped without a trace, and no message is sure to stand where its ticket says. One of them alone leaves a trace; a
-- closed queue takes no pushes; and who was seen to act and has not counted acts no more, so the other leaves a trace, too.
-- It is decided once in a step, when it is first asked.
local function is_unsure(S)
  if S.unsure == 'unasked' then
    S.unsure = not S.closed and redis.call('EXISTS', K.producer_free, K.consumer_free) == 0
      and not has_acted(S, 'producer', S.seen_prod - S.prod) and not has_acted(S, 'consumer', S.seen_cons - S.cons)
  end
  return S.unsure
end

-- Reads the queue's state and works out what foreign clients did; writes nothing. nil if there is no such queue.
-- Afterwards `S.size` is the number of elements in the list, `S.len` how many messages wait, and `S.passed` the walk
-- over what foreign clients took. O(1), O(log n) per message taken from the middle that they passed.
-- `joining` at the tail are known to have been put there just now, and are not counted: the caller says that they joined.
-- Fails if the queue has a layout that this version does not know.
local function load(joining)
  local strings = redis.call('MGET', K.bound, K.produced_messages, K.consumed_messages)
  if not strings[1] then return nil end
  local meta = redis.call('HMGET', K.meta, unpack(CORE))
  refuse_newer(meta[3])
  -- Named here, the entries have room from the start; and what is false is not looked for among the other fields.
  local extras = count_extras()
  local S = { now = NOW, dirty = {}, extras = extras, bound = tonumber(strings[1]) or 0, prod = tonumber(strings[2]) or 0,
              cons = tonumber(strings[3]) or 0, size = redis.call('LLEN', K.q) - (joining or 0),
              closed = extras > 0 and redis.call('EXISTS', K.closed) == 1, pops = 0, pushes = 0, gen = meta[1],
              turn_to = meta[2] or '', layout = 0, head = 0, tail = 0, seen_len = 0, seen_prod = 0, seen_cons = 0,
              n_gaps = 0, n_holes = 0, n_bundled = 0, aged = 0, due_said = 0, tidy_at = 0, expiring = 0, standing = 0,
              adopted_at = 0, watched_until = 0, paused = 0, n_departed = 0, tick_at = 0, n_accepted = 0, put_sum = 0,
              put_sum_at = 0, n_acked = 0, ack_sum = 0, ack_sum_at = 0, len = 0, returned = 0, is_new = false,
              was_full = false, policy = false, log = false, bits = false, at_commit = false, made_room = false,
              time_known = false, called = false, present = false, lapse_at = false, is_line_empty = false,
              n_finished = false, is_put_off = false, unsure = 'unasked', is_hole_near = false, is_walk_cut = false }
  for i = FIRST_COUNTER, #CORE do
    local value = meta[i]
    if value and value ~= '0' then S[CORE[i]] = value + 0 end
  end
  setmetatable(S, { __index = function(_, name)
    if not is_other_field(name) then return nil end
    read_others(S)
    return rawget(S, name)
  end })
  S.is_new = not S.gen or redis.call('PTTL', K.bound) < LIFE_MARK_LEAST
  if S.is_new then
    S.is_remade = S.gen and true or false
    S.gen, S.offer_to, S.turn_to, S.scan = ARGV[1], '', '', '-1'
    for _, names in ipairs({ CORE, other_fields() }) do
      for i = FIRST_COUNTER, #names do S[names[i]] = 0 end
    end
    S.tail, S.seen_len, S.seen_prod, S.seen_cons, S.n_accepted = S.size, S.size, S.prod, S.cons, S.size
    S.layout, S.born, S.adopted_at = FIRST_LAYOUT, S.now, S.now
    S.len, S.returned = S.size, 0
    return S
  end
  S.returned = extras > 0 and redis.call('ZCARD', K.returned) or 0
  local more = S.size - S.seen_len
  local produced = math.max(0, S.prod - S.seen_prod)
  local consumed = math.max(0, S.cons - S.seen_cons)
  -- A foreign put counts after it pushed, and a foreign get from a closed queue does not count at all: believe
  -- whichever of counters and length shows more.
  S.pops = math.max(consumed, produced - more, 0)
  S.pushes = more + S.pops
  local holes = 0
  if S.pops > 0 or S.pushes > 0 then
    S.tail = S.tail + S.pushes
    S.passed = walk(S, S.pops)
    holes = S.passed.holes
    S.tail = S.tail - S.pushes
    add(S, 'seen_prod', S.pushes)
    add(S, 'seen_cons', S.pops)
    add(S, 'n_accepted', S.pushes)
    add(S, 'n_foreign', S.pops - holes)
    add(S, 'n_departed', S.pops - holes)
    set(S, 'seen_len', S.size)
  end
  if S.seen_prod > S.prod then note_uncounted(S, 'producer', 'seen_prod', S.prod, S.pushes) end
  if S.seen_cons > S.cons then note_uncounted(S, 'consumer', 'seen_cons', S.cons, S.pops) end
  S.len = S.size - S.n_holes + holes
  return S
end

local function forget_own_keys()
  refuse_unread()
  local keys = {}
  for _, name in ipairs(own_names()) do keys[#keys + 1] = key_of(name) end
  redis.call('UNLINK', unpack(keys))
end

-- While somebody watches the queue, what happens to its messages is logged: a letter, the reference of the message, and
-- what belongs to it. domain/places.py tells the letters; store/watch_replies.py reads them.
local LOG_LEAST, LOG_MOST, LOG_KEPT_MS = 5000, 6000, 60000
local WATCHED_MS, WATCHED_AGAIN_MS = 15000, 5000   -- how long a look keeps the log going, and when that is renewed

local function tell(S, what, ref, more)
  if S.watched_until <= S.now then return end
  S.log = S.log or {}
  S.log[#S.log + 1] = what .. ' ' .. ref .. (more and ' ' .. more or '')
end

local function write_log(S)
  push_to(K.log, S.log)
  add(S, 'logged', #S.log)
  if redis.call('LLEN', K.log) > LOG_MOST then redis.call('LTRIM', K.log, -LOG_LEAST, -1) end
  redis.call('PEXPIRE', K.log, LOG_KEPT_MS)
end

-- Somebody watches from now on. What happened while nobody did is not known: then whoever asks for it must learn that.
local function keep_watching(S)
  if S.watched_until <= S.now then
    redis.call('DEL', K.log)
    add(S, 'logged', 1)
  end
  if S.watched_until < S.now + WATCHED_MS - WATCHED_AGAIN_MS then set(S, 'watched_until', S.now + WATCHED_MS) end
end

-- Something is to be forgotten at `at`.
local TIDY_EVERY_MS = 1000
local function tidy_by(S, at)
  at = math.max(at, S.now + TIDY_EVERY_MS)
  if S.tidy_at == 0 or at < S.tidy_at then set(S, 'tidy_at', at) end
end

-- Drops what is known of the messages that foreign clients took: the first of the returned, then from the head on.
-- O(pops that had anything known of them).
local function book_pops(S)
  local before = S.head
  if S.passed.returned > 0 and S.watched_until > S.now then
    for _, ticket in ipairs(redis.call('ZRANGE', K.returned, 0, S.passed.returned - 1)) do
      if is_waiting(S, ticket) then tell(S, 'E', ticket, 'u ') end
    end
  end
  local returned = take_walked(S, S.passed)
  remove_fields(K.side, returned)
  local from_line = S.head - before
  local known = redis.call('HLEN', K.side)
  if from_line > 0 and known > S.returned then
    local gone = {}
    if known < from_line then
      for _, ticket in ipairs(redis.call('HKEYS', K.side)) do
        local number = tonumber(ticket)
        if number > before and number <= S.head then gone[#gone + 1] = ticket end
      end
    else
      for number = before + 1, S.head do gone[#gone + 1] = text_of(number) end
    end
    remove_fields(K.side, gone)
  end
  if redis.call('EXISTS', K.ids) == 1 then
    if S.scan == '-1' then set(S, 'scan', '0') elseif S.scan ~= '0' then set(S, 'scan_again', 1) end
    tidy_by(S, S.now)
  end
end

-- Why there is no such queue; `absence` also forgets what a foreign delete left of ours.
local function why_absent()
  local is_leaving = redis.call('EXISTS', K.deleting) == 1 or redis.call('EXISTS', K.closed) == 1
  return is_leaving and T.QUEUE_DELETED or T.QUEUE_NOT_FOUND
end
local function absence()
  local reason = why_absent()
  if reason == T.QUEUE_NOT_FOUND and redis.call('EXISTS', K.meta) == 1 then forget_own_keys() end
  return reason
end

-- What waits, or is delayed, under this reference expires at `at`; 0 = never. O(log n).
local function expire_at(S, ref, at)
  if at == 0 then return end
  redis.call('ZADD', K.expiry, at, ref)
  if S.expiring == 0 then set(S, 'expiring', 1) end
end

-- Messages that foreign clients put get the queue's time to live when they are noticed. Among them may stand what
-- Headway put before they had it: that has its time already, or a record and none. O(k log n), bounded.
local function age_foreign(S)
  local ttl = policy_of(S, 'time_to_live_ms')
  local first = math.max(S.aged, S.head) + 1
  local last = ttl > 0 and math.min(S.tail, first - 1 + AGED_AT_ONCE) or S.tail
  set(S, 'aged', last)
  if ttl == 0 or first > last then return end
  local tickets = {}
  for ticket = first, last do tickets[#tickets + 1] = text_of(ticket) end
  local sides = has_extra(S, K.side) and fields_of(K.side, tickets) or {}
  for i, ticket in ipairs(tickets) do
    if not sides[i] and is_waiting(S, ticket) then redis.call('ZADD', K.expiry, 'NX', S.now + ttl, ticket) end
  end
  if S.expiring == 0 then set(S, 'expiring', 1) end
end

-- Reads the state and books what foreign clients did. nil and a status if there is no such queue. See `load` for
-- `joining`.
local MANY_ARGUMENTS = 32
local function open(joining)
  if #ARGV > MANY_ARGUMENTS then keep_keys() end
  local S = load(joining)
  if not S then return nil, absence() end
  S.was_full = S.bound > 0 and S.len >= S.bound
  if S.is_new then
    if S.is_remade then forget_own_keys() end
    local fields = first_fields(S.gen)
    for _, row in ipairs(policy_defaults()) do
      if row[1] ~= 'bound' then
        fields[#fields + 1] = row[1]
        fields[#fields + 1] = row[2]
      end
    end
    redis.call('HSET', K.meta, unpack(fields))
    for _, names in ipairs({ CORE, other_fields() }) do
      for i = FIRST_COUNTER, #names do S.dirty[names[i]] = true end
    end
    S.aged = S.tail
    redis.call('PEXPIREAT', K.bound, LIFE_MARK_AT)
    return S
  end
  if S.pushes > 0 then add(S, 'tail', S.pushes) end
  if S.pops > 0 then
    book_pops(S)
    time_of(S, S.head + 1)
  end
  if S.pushes > 0 then
    note_time(S, S.tail - S.pushes + 1)
    count_rate(S, 'put_sum', S.pushes)
  end
  if S.aged < S.tail then age_foreign(S) end
  if S.n_holes > 0 then fill_holes(S) end
  return S
end

-- Whether it is still the queue that somebody began to wait for, and not another of its name. '' = whichever it is.
local function is_life(S, generation) return generation == '' or generation == S.gen end

local function room_of(S)
  if S.bound == 0 then return math.huge end
  return math.max(0, S.bound - S.len)
end

-- How many leases are out: those that are kept by themselves, and those in bundles.
local function leased_count(S) return redis.call('ZCARD', K.leases) + S.n_bundled end

-- How many of the dead may join the line. A foreign producer that holds its role may have found the room already that it
-- is about to take.
local function room_for_the_dead(S)
  if S.bound > 0 and not role_is_free('producer') or is_unsure(S) then return 0 end
  return room_of(S)
end

-- pressure's not_full has one token exactly while there is room. While a foreign client holds the producer role it may
-- have popped the token for the push it is about to do, so then a token is added only if this step made room. While a
-- foreign client may still be making the queue, it is its own to add: it insists on being the first to.
local function mend_not_full(S, made_room)
  local tokens = redis.call('LLEN', K.not_full)
  local is_full = S.bound > 0 and S.len >= S.bound
  if S.adopted_at > 0 and (tokens > 0 or S.was_full or S.now - S.adopted_at >= CREATING_MS) then
    set(S, 'adopted_at', 0)
  end
  if is_full then
    if tokens > 0 then redis.call('DEL', K.not_full) end
  elseif tokens > 1 then
    redis.call('LTRIM', K.not_full, 0, 0)
  elseif tokens == 0 and S.adopted_at == 0 and (made_room or role_is_free('producer')) then
    redis.call('LPUSH', K.not_full, '0')
  end
end

-- A waiter takes its place in the producer line, unless it has it already; `producer` is the name by which its place
-- may be watched, '' = none. O(log n).
local function join_producers(S, number, waiter, producer)
  S.extras = 1
  if redis.call('ZADD', K.producers, 'NX', number, waiter) == 1 and producer ~= '' then
    redis.call('HSET', K.blocked, waiter, producer)
  end
end

-- Whatever the reason, this is how a waiter leaves the producer line. O(log n).
local function leave_producers(waiter)
  if redis.call('ZREM', K.producers, waiter) == 1 then redis.call('HDEL', K.blocked, waiter) end
end

-- Whoever is first in the producer line and whose process still listens to its channel; the others are dropped. If
-- `offers`, tells it that it is its turn; a process that lets its turn pass for OFFER_MS is dropped, too. When it is
-- `me` it has come, and its time runs anew from when it is next told. O(dropped), at most 100.
local function first_producer(S, me, offers)
  if S.extras == 0 then return nil end
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', K.producers, 0, 0)[1]
    if not first then return nil end
    if first == me then
      if S.offer_to == me then set(S, 'offer_to', '') end
      return me
    end
    local channel = ARGV[2] .. WAKE_CHANNEL .. (string.match(first, '^(.*)#%d+$') or first)
    if S.offer_at > S.now then set(S, 'offer_at', S.now) end   -- the clock has gone back: its time begins anew
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
    leave_producers(first)
  end
  return redis.call('ZRANGE', K.producers, 0, 0)[1]   -- the next step looks whether it lives
end
