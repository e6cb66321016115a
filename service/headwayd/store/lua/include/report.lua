-- @include names
-- Everything about a queue in one flat list; store/replies.py reads it. Writes nothing. O(1).

-- What a look at the queue sees that must not write: places as they are once the pops of foreign clients are booked.
local function look_past(S)
  local W = S.passed
  if not W or S.is_booked then return end
  S.skipped = W.returned
  S.head = W.head
  S.tail = S.tail + S.pushes
end

-- The first ticket behind the head, as a look sees it, that waits, or `has_element` in the list, with this many such
-- before it there. O(log n) looks.
local function fresh_ticket(S, before, has_element)
  local low, high = S.head + 1, S.tail + 1
  if S.n_gaps == 0 then return low + before end
  while low < high do
    local middle = math.floor((low + high) / 2)
    local above, to = '(' .. text_of(S.head), text_of(middle)
    local count = middle - S.head - redis.call('ZCOUNT', K.gaps, above, to)
    if has_element and S.n_holes > 0 then count = count + redis.call('ZCOUNT', K.holes, above, to) end
    if count > before then high = middle else low = middle + 1 end
  end
  return low
end

-- How many holes foreign clients took, as far as that is only looked at and not booked.
local function holes_passed(S) return S.skipped and S.passed.holes or 0 end

-- How many of the returned wait, as a look sees them. O(log n).
local function returned_alive(S)
  local elements = S.returned - (S.skipped or 0)
  if S.n_holes == 0 then return elements end
  return elements - redis.call('ZCOUNT', K.holes, '-inf', text_of(S.head)) + holes_passed(S)
end

-- The place among the returned, as a look sees them, of the one that waits at this position. O(log n) looks.
local function rank_of(S, position)
  local skipped = S.skipped or 0
  local low, high = position - 1, S.returned - skipped - 1
  while low < high and S.n_holes > 0 do
    local middle = math.floor((low + high) / 2)
    local order = redis.call('ZRANGE', K.returned, skipped + middle, skipped + middle, 'WITHSCORES')[2]
    local alive = middle + 1 - (redis.call('ZCOUNT', K.holes, '-inf', order) - holes_passed(S))
    if alive >= position then high = middle else low = middle + 1 end
  end
  return low
end

-- The place in the list of the element of a ticket behind the head, as a look sees it. O(log n).
local function fresh_index(S, ticket)
  local index = S.returned - (S.skipped or 0) + ticket - S.head - 1
  if S.n_gaps > 0 then index = index - count_between(K.gaps, S.head, ticket) end
  if S.n_holes > 0 then index = index + count_between(K.holes, S.head, ticket) end
  return index
end

-- The ticket at the head, as a look sees it, and the place of its element in the list; nil if none waits. O(log n) looks
-- where those that were withdrawn stand before it, else O(log n).
local function first_waiting(S)
  local skipped = S.skipped or 0
  if returned_alive(S) > 0 then
    local ticket, index = redis.call('ZRANGE', K.returned, skipped, skipped)[1], 0
    if S.n_holes > 0 and redis.call('ZSCORE', K.holes, ticket) then
      index = rank_of(S, 1)
      ticket = redis.call('ZRANGE', K.returned, skipped + index, skipped + index)[1]
    end
    return ticket, index
  end
  local number = S.head + 1
  if S.n_gaps > 0 and redis.call('ZSCORE', K.gaps, text_of(number)) then number = fresh_ticket(S, 0) end
  if number > S.tail then return nil end
  return text_of(number), fresh_index(S, number)
end

-- When the message at the head was put, 0 if nobody knows or none waits.
local function oldest_put_at(S)
  if S.len == 0 or (S.is_new and not S.is_booked) then return 0 end
  local ticket, index = first_waiting(S)
  if not ticket then return 0 end
  local side = redis.call('HGET', K.side, ticket)
  if side then return unpack_record(side).put_at end
  return put_at_of(S, ticket, redis.call('LINDEX', K.q, -(index + 1)))
end

local function rate_of(S, name) return string.format('%.6f', decayed(S, name) / RATE_SPAN_MS * 1000) end

local function report(S)
  -- What stands in our keys is an old life's if a foreign client made the queue anew and nothing was booked since. Nor
  -- has its life a generation: that begins with the first step that books.
  local is_foreign = S.is_new and not S.is_booked
  local function size_of(key) return is_foreign and 0 or redis.call('ZCARD', key) end
  if not is_foreign then look_past(S) end
  local stats = redis.call('MGET', K.produced_messages, K.produced_bytes, K.consumed_messages, K.consumed_bytes)
  local list = {
    text_of(S.now), is_foreign and '' or S.gen, text_of(S.born), text_of(S.bound), S.closed and 1 or 0, S.paused, S.len,
    is_foreign and 0 or leased_count(S), size_of(K.delayed), size_of(K.dead),
    is_foreign and 0 or returned_alive(S), size_of(K.consumers), size_of(K.producers),
    stats[1] or '0', stats[2] or '0', stats[3] or '0', stats[4] or '0',
    text_of(S.n_accepted), text_of(S.n_acked), text_of(S.n_expired), text_of(S.n_withdrawn), text_of(S.n_foreign),
    not is_foreign and redis.call('HGET', K.meta, 'n_lapsed') or '0',
    text_of(oldest_put_at(S)), rate_of(S, 'put_sum'), rate_of(S, 'ack_sum'),
    role_is_free('producer') and 0 or 1, holder_of('producer'),
    role_is_free('consumer') and 0 or 1, holder_of('consumer'),
  }
  local names, rows = {}, policy_defaults()
  for _, row in ipairs(rows) do names[#names + 1] = row[1] end
  local values = redis.call('HMGET', K.meta, unpack(names))
  for i, row in ipairs(rows) do
    if row[1] == 'bound' then
      list[#list + 1] = text_of(S.bound)
    else
      list[#list + 1] = not S.is_remade and values[i] or row[2]
    end
  end
  return list
end

-- The reply of a call that answers with the queue.
local function answer(S, status)
  local reply = { ARGV[1], status }
  for _, value in ipairs(report(S)) do reply[#reply + 1] = value end
  return reply
end
