#!lua
-- Puts messages at the tail, from the first on, as far as there is room and nobody waits before.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] producer's name
-- ARGV[4] waiter (process name, '#', number) that stands in the producer line if there is no room; '' = does not wait
-- ARGV[5] the number in line that the waiter had before; '0' = none
-- ARGV[6] 'keep' or 'reject': what to do with known ids
-- ARGV[7] '1': all of them or none
-- ARGV[8] count, then for each message: id ('' = none), when ('' = now, 'd' + ms from now, 'a' + ms since 1970),
--         headers (encoded), payload
-- Reply: echo, status, now, generation, wait ('' | 'room' | 'role'), holder, number in line, first ticket, first
--        position, messages dealt with, next due, bound, then for each message dealt with that did not join the line:
--        index, 'delayed' | 'kept' | 'duplicate', reference, position. Status: OK, QUEUE_CLOSED, DUPLICATE_MESSAGE (all
--        or none) and TOO_FAR (+ index), NEVER_FITS, or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change, and the next producer in line.
-- @include due
local WAITER, COUNT = ARGV[4], tonumber(ARGV[8])

local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)

local function refuse(...)
  if WAITER ~= '' then redis.call('ZREM', K.producers, WAITER) end
  commit(S, false, nil)
  return { ARGV[1], ... }
end
if S.closed then return refuse(T.QUEUE_CLOSED) end
for i = 1, COUNT do
  local when = ARGV[10 + 4 * (i - 1)]
  local is_instant = string.sub(when, 1, 1) == 'a'
  if is_instant and tonumber(string.sub(when, 2)) > S.now + MAX_DELAY_MS then return refuse(T.TOO_FAR, i) end
end

local wait, holder = '', ''
local first = first_producer(S, WAITER ~= '' and WAITER or nil, room_of(S) > 0)
local room = room_of(S)
if first and first ~= WAITER then room = 0 end
if not role_is_free('producer') then
  wait, holder, room = 'role', holder_of('producer'), -1
end

local function due_of(when)
  if when == '' then return 0 end
  local at = tonumber(string.sub(when, 2))
  if string.sub(when, 1, 1) == 'd' then at = at + S.now end
  return at > S.now and at or 0
end

if ARGV[7] == '1' and room >= 0 then
  local needed, in_batch = 0, {}
  for i = 1, COUNT do
    local at = 9 + 4 * (i - 1)
    local id = ARGV[at]
    local known = id ~= '' and (in_batch[id] or find_id(S, id))
    if known and ARGV[6] ~= 'keep' then return refuse(T.DUPLICATE_MESSAGE, i) end
    if id ~= '' then in_batch[id] = true end
    if not known and due_of(ARGV[at + 1]) == 0 then needed = needed + 1 end
  end
  if S.bound > 0 and needed > S.bound then return refuse(T.NEVER_FITS) end
  if needed > room then room = -1 end
end

local elements, ids, exceptions, done, accepted, bytes = {}, {}, {}, 0, 0, 0
local in_batch = {}
local first_ticket, first_position = tail_ticket(S) + 1, S.len + 1
local function except(i, code, ref, position)
  exceptions[#exceptions + 1] = i
  exceptions[#exceptions + 1] = code
  exceptions[#exceptions + 1] = ref
  exceptions[#exceptions + 1] = position
end

for i = 1, room >= 0 and COUNT or 0 do
  local at = 9 + 4 * (i - 1)
  local id, headers, payload = ARGV[at], ARGV[at + 2], ARGV[at + 3]
  local state, ref
  if id ~= '' then
    state, ref = find_id(S, id)
    if in_batch[id] then state, ref = 'w', in_batch[id] end
  end
  local due = due_of(ARGV[at + 1])
  if state then
    local position = 0
    if state == 'w' then
      local ticket = tonumber(ref)
      if in_batch[id] or ticket > S.head then
        position = S.returned + ticket - S.head
      elseif redis.call('ZSCORE', K.returned, ref) then
        position = redis.call('ZRANK', K.returned, ref) + 1
      end
    end
    except(i, ARGV[6] == 'keep' and 'kept' or 'duplicate', state == 'w' and ref or '0', position)
  elseif due > 0 then
    local record = new_record(S.now)
    if id == '' then record.id = '~' .. S.gen .. '-d' .. text_of(S.seq + 1) end
    local element = make_element(id, headers, payload, S.now)
    set_aside(S, element, record, due)
    accepted, bytes = accepted + 1, bytes + #element
    except(i, 'delayed', text_of(S.seq), 0)
  elseif room <= #elements then
    break
  else
    local element = make_element(id, headers, payload, S.now)
    elements[#elements + 1] = element
    accepted, bytes = accepted + 1, bytes + #element
    if id ~= '' then
      local ticket = text_of(first_ticket + #elements - 1)
      in_batch[id] = ticket
      ids[#ids + 1] = id
      ids[#ids + 1] = 'w' .. ticket
    end
  end
  done = i
end

if #elements > 0 then
  note_time(S, first_ticket)
  push_tail(elements)
  S.len = S.len + #elements
end
if #ids > 0 then set_fields(K.ids, ids) end
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
if WAITER ~= '' then
  if done < COUNT then
    if number == 0 then
      add(S, 'line', 1)
      number = S.line
    end
    redis.call('ZADD', K.producers, 'NX', number, WAITER)
  else
    redis.call('ZREM', K.producers, WAITER)
  end
end
local due = commit(S, false, WAITER ~= '' and WAITER or nil)
local reply = { ARGV[1], T.OK, text_of(S.now), S.gen, wait, holder, text_of(number), text_of(first_ticket),
  text_of(first_position), done, text_of(due), text_of(S.bound) }
for _, value in ipairs(exceptions) do reply[#reply + 1] = value end
return reply
