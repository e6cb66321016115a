#!lua
-- Puts messages at the tail, from the first on, as far as there is room and nobody waits before.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] producer's name
-- ARGV[4] waiter (process name, '#', number) that stands in the producer line if there is no room; '' = does not wait
-- ARGV[5] the number in line that the waiter had before; '0' = none
-- ARGV[6] 'keep', 'reject' or 'replace': what to do with known ids
-- ARGV[7] '1': all of them or none
-- ARGV[8] '1': the producer's name is the caller's own, and its place may be watched by that
-- ARGV[9] generation in which the waiter began to wait; '' = whichever it is
-- ARGV[10] count, then for each message: id ('' = none), when ('' = now, 'd' + ms from now, 'a' + ms since 1970), time
--         to live (ms; '0' = the queue's policy), headers (encoded), payload
--         or 'p' and count, then only the payload of each: now, with nothing else given
--         or 'g' and count: the gate is to be opened for so many (see include/gate); the reply is echo, OK or GATE_SHUT
--         or 'j' and count, then their bytes: they have come through it
-- Reply: echo, status, now, generation, wait ('' | 'room' | 'role' | 'more': the rest is for another step), holder, number
--        in line, first ticket, first position, messages dealt with, next due, bound, then for each message dealt with
--        that did not just join the tail behind the one before: index, 'queued' | 'replaced' | 'delayed' | 'kept' |
--        'differs' (kept, with another body) | 'duplicate', reference, position. Status: OK, QUEUE_CLOSED,
--        DUPLICATE_MESSAGE (all or none) and TOO_FAR (+ index), NEVER_FITS, GATE_SHUT (none has joined), or why there is
--        no queue.
-- O(k log n + MOST_PASSED); all or none: and the ways to all that wait under known ids. Wakes waiting consumers by the line's
-- change, and the next producer in line.
-- @include due gate
local FORM = string.byte(ARGV[10])
if FORM == 103 then   -- 'g'
  local said = open_gate(tonumber(string.sub(ARGV[10], 2)), ARGV[9])
  return said.err and said or { ARGV[1], said }
end
local HAVE_JOINED = FORM == 106   -- 'j'
local IS_PLAIN = HAVE_JOINED or FORM == 112   -- 'p'
local WAITER, MODE, COUNT = ARGV[4], ARGV[6], tonumber(IS_PLAIN and string.sub(ARGV[10], 2) or ARGV[10])
local FIELDS = 5
local function field(i, at) return ARGV[10 + FIELDS * (i - 1) + at] end

if HAVE_JOINED and not close_gate() then return { ARGV[1], T.GATE_SHUT } end
local S, status = open(HAVE_JOINED and COUNT or 0)
if not S then return { ARGV[1], status } end
if not HAVE_JOINED then do_what_is_due(S) end   -- else it would stand behind them, and have tickets before theirs

local function refuse(...)
  if WAITER ~= '' then leave_producers(WAITER) end
  commit(S, false, nil)
  return { ARGV[1], ... }
end
if not is_life(S, ARGV[9]) then return refuse(T.QUEUE_DELETED) end
if S.closed then return refuse(T.QUEUE_CLOSED) end
for i = 1, IS_PLAIN and 0 or COUNT do
  local when = field(i, 2)
  local is_instant = string.byte(when) == 97   -- 'a'
  if is_instant and tonumber(string.sub(when, 2)) > S.now + MAX_DELAY_MS then return refuse(T.TOO_FAR, i) end
end

local wait, holder = '', ''
local first = first_producer(S, WAITER ~= '' and WAITER or nil, room_of(S) > 0)
local has_turn = not first or first == WAITER
local function room() return has_turn and room_of(S) or 0 end
local is_held = not role_is_free('producer')
if is_held then wait, holder = 'role', holder_of('producer') end

local may_begin = not is_held

local function due_of(when)
  if when == '' then return 0 end
  local at = tonumber(string.sub(when, 2))
  if string.sub(when, 1, 1) == 'd' then at = at + S.now end
  return at > S.now and at or 0
end

-- Ids that nothing is known of: mostly all, so they are looked for together. Not made ones, which are found otherwise.
local unknown = {}
if not IS_PLAIN and may_begin then
  local ids = {}
  for i = 1, ARGV[7] == '1' and COUNT or math.min(COUNT, room() + 1) do   -- the others mostly have to wait
    local id = field(i, 1)
    if id ~= '' and is_given(id) then ids[#ids + 1] = id end
  end
  for i, at in ipairs(fields_of(K.ids, ids)) do
    if not at then unknown[ids[i]] = true end
  end
end
local function take(id)
  if unknown[id] then unknown[id] = nil else take_name(id) end
end

-- What is known of an id: as find_name says, but nil if it is finished and its window is over.
local function known(id)
  if id == '' or unknown[id] then return nil end
  local state, ref, mark, finished_at, digest = find_name(S, id)
  if state == 'l' then untie_with(S, ref) end
  if state ~= 'f' then return state, ref end
  if mark == MARK.TAKEN and finished_at == S.now then finish_name(S, id, ref, mark, nil, '') end
  if is_within_window(S, finished_at) then return state, ref, digest end
  return nil
end

if ARGV[7] == '1' and may_begin then
  local needed, in_batch = IS_PLAIN and COUNT or 0, {}
  for i = 1, IS_PLAIN and 0 or COUNT do
    local id, is_delayed = field(i, 1), due_of(field(i, 2)) > 0
    local state = in_batch[id] or known(id)
    if state and MODE == 'reject' then return refuse(T.DUPLICATE_MESSAGE, i) end
    local takes_place = state and (MODE == 'keep' or state == 'w')
    if not takes_place and not is_delayed then needed = needed + 1 end
    if id ~= '' then in_batch[id] = is_delayed and 'd' or 'w' end
  end
  if S.bound > 0 and needed > S.bound then return refuse(T.NEVER_FITS) end
  if needed > room() then may_begin = false end
end

local first_ticket, first_position = S.tail + 1, S.len + 1
local exceptions, joining, joining_names = {}, {}, {}
local done, accepted, bytes = 0, 0, 0
local way = {}              -- to those that wait under known ids
local is_explicit = false   -- from the first replacement on each message's ticket is told
local function except(i, code, ref, position)
  exceptions[#exceptions + 1] = i
  exceptions[#exceptions + 1] = code
  exceptions[#exceptions + 1] = ref
  exceptions[#exceptions + 1] = position
end
local function flush()
  if #joining == 0 then return end
  join_tail(S, joining)
  joining, joining_names = {}, {}
end

-- The element of the message kept under an id.
local function kept_element(state, ref)
  if state == 'w' then return redis.call('LINDEX', K.q, -(index_of(S, ref) + 1)) end
  if state == 'l' then return redis.call('HGET', K.body, ref) end
  if state == 'd' then return (select(2, unpack_both(redis.call('HGET', K.later, string.sub(ref, 2))))) end
  return (select(2, unpack_corpse(redis.call('HGET', K.corpse, ref))))
end

-- Another message stands in the place of the one that waits.
local function swap(ref, element, record)
  redis.call('LSET', K.q, -(index_of(S, ref) + 1), element)
  tell(S, 'R', ref)
  local side = redis.call('HGET', K.side, ref)
  if side then
    local old = unpack_record(side)
    if old.nonce ~= NO_NONCE then remember(S, ref, old, MARK.REPLACED, '') end
    record.flags = with_flag(has_flag(old.flags, FLAG.COUNTED) and FLAG.COUNTED or 0, FLAG.RELEASED)
    redis.call('HSET', K.side, ref, pack_record(record))
  end
  if S.expiring == 1 then redis.call('ZREM', K.expiry, ref) end
  expire_at(S, ref, record.expires_at)
end

-- Removes the message that is to be replaced.
local function remove_old(state, ref)
  if state == 'l' then
    remember(S, ref, unpack_record(redis.call('HGET', K.lease, ref)), MARK.REPLACED, '')
    drop_leases(S, { ref }, false)
  elseif state == 'x' then
    local record = unpack_corpse(redis.call('HGET', K.corpse, ref))
    if record.nonce ~= NO_NONCE then remember(S, ref, record, MARK.REPLACED, '') end
    redis.call('ZREM', K.dead, ref)
    redis.call('HDEL', K.corpse, ref)
  else
    local _, record = take_one(S, ref)
    if record.nonce ~= NO_NONCE and state == 'w' then remember(S, ref, record, MARK.REPLACED, '') end
  end
  add(S, 'n_withdrawn', 1)
end

local default_expiry
local function expiry_of(ttl)
  if ttl ~= '0' then return S.now + tonumber(ttl) end
  if not default_expiry then
    local default_ms = policy_of(S, 'time_to_live_ms')
    default_expiry = default_ms > 0 and S.now + default_ms or 0
  end
  return default_expiry
end

if HAVE_JOINED then
  accepted, done, bytes = COUNT, COUNT, tonumber(ARGV[11])
  join_bare(S, COUNT, 0)
elseif may_begin and IS_PLAIN then
  local expires_at, byte = expiry_of('0'), string.byte
  done = math.min(COUNT, room())
  for i = 11, 10 + done do
    if byte(ARGV[i]) == MAGIC_BYTE then ARGV[i] = make_element('', '', ARGV[i], S.now) end
    bytes = bytes + #ARGV[i]
  end
  accepted = done
  push_arguments(11, 10 + done)
  join_bare(S, done, expires_at)
end

for i = 1, may_begin and not IS_PLAIN and COUNT or 0 do
  local at = 10 + FIELDS * (i - 1)
  local id, due, headers, payload = ARGV[at + 1], due_of(ARGV[at + 2]), ARGV[at + 4], ARGV[at + 5]
  local element, state, ref, digest
  if id ~= '' then
    if joining_names[id] then flush() end
    state, ref, digest = known(id)
    local is_looked_at = state == 'w' and MODE ~= 'reject' and ARGV[7] ~= '1'
    if is_looked_at and not is_within_reach(S, way, ref) then
      wait = 'more'
      break
    end
  end
  local replaces = state and MODE == 'replace'
  if state and not replaces then
    local code = 'duplicate'
    if MODE == 'keep' then
      code = 'kept'
      local old = state == 'f' and digest or digest_of(kept_element(state, ref))
      if old ~= '' and old ~= digest_of(make_element(id, headers, payload, S.now)) then code = 'differs' end
    end
    except(i, code, state == 'w' and ref or '0', state == 'w' and position_of(S, ref) or 0)
  else
    element = make_element(id, headers, payload, S.now)
    local expires_at = expiry_of(ARGV[at + 3])
    if replaces and state == 'w' and due == 0 then
      local record = new_record(S.now)
      record.expires_at = expires_at
      swap(ref, element, record)
      add(S, 'n_withdrawn', 1)
      except(i, 'replaced', ref, position_of(S, ref))
    elseif due > 0 then
      if replaces and state ~= 'f' then
        flush()
        is_explicit = true
        remove_old(state, ref)
      end
      if id ~= '' then take(id) end
      local record = new_record(S.now)
      record.expires_at = expires_at
      if id == '' then record.id = '~' .. S.gen .. '-d' .. text_of(S.seq + 1) end
      set_aside(S, element, record, due, replaces and state ~= 'f' and ref or nil)
      except(i, 'delayed', text_of(S.seq), 0)
    elseif room() <= #joining then
      break
    else
      if replaces and state ~= 'f' then
        flush()
        is_explicit = true
        remove_old(state, ref)
      end
      if id ~= '' then
        take(id)
        joining_names[id] = true
      end
      joining[#joining + 1] = { element = element, name = id, expires_at = expires_at,
                                from = replaces and state ~= 'f' and ref or nil }
      if is_explicit then except(i, 'queued', text_of(S.tail + #joining), S.len + #joining) end
    end
    accepted, bytes = accepted + 1, bytes + #element
  end
  done = i
end
flush()

if accepted > 0 then
  redis.call('SET', K.producer, ARGV[3])
  redis.call('INCRBY', K.produced_messages, accepted)
  redis.call('INCRBY', K.produced_bytes, bytes)
  add(S, 'seen_prod', accepted)
  add(S, 'n_accepted', accepted)
  count_rate(S, 'put_sum', accepted)
end

local number = tonumber(ARGV[5])
if done < COUNT and wait == '' then wait = 'room' end
if WAITER ~= '' and wait ~= 'more' then
  if done < COUNT then
    if number == 0 then
      add(S, 'line', 1)
      number = S.line
    end
    join_producers(S, number, WAITER, ARGV[8] == '1' and ARGV[3] or '')
  else
    leave_producers(WAITER)
  end
end
local due = commit(S, false, WAITER ~= '' and WAITER or nil)
local reply = { ARGV[1], T.OK, S.now, S.gen, wait, holder, number, first_ticket, first_position, done, due, S.bound }
for _, value in ipairs(exceptions) do reply[#reply + 1] = value end
return reply
