-- @include queue frame
-- Moves messages into and back into the line, to the dead, and out of memory.

-- The given id of an element and its put time; '' and 0 for a bare payload.
local function id_of(element)
  local id, put_at = read_frame(element)
  return id or '', put_at or 0
end

-- Remembers the id of a message that is finished for the dedupe window, then forgets it. O(log n).
local function finish_id(S, id)
  if id == '' then return end
  local window = policy_of(S, 'dedupe_window_ms')
  if window > 0 then
    redis.call('HSET', K.ids, id, 'f')
    redis.call('ZADD', K.forget, S.now + window, id)
  else
    redis.call('HDEL', K.ids, id)
  end
  local due = redis.call('ZRANGEBYSCORE', K.forget, '-inf', S.now, 'LIMIT', 0, 4)
  if #due > 0 then
    redis.call('ZREM', K.forget, unpack(due))
    redis.call('HDEL', K.ids, unpack(due))
  end
end

-- Where the message with this given id is: 'w' and its ticket (waiting or leased), 'd' and its number, 'x' and its
-- ticket (dead), 'f' (finished within the window); nil if it is not known.
local function find_id(S, id)
  local at = redis.call('HGET', K.ids, id)
  if not at then return nil end
  local state, ref = string.sub(at, 1, 1), string.sub(at, 2)
  if state == 'f' then
    local until_ms = tonumber(redis.call('ZSCORE', K.forget, id) or 0)
    if until_ms > S.now then return state, ref end
  elseif state ~= 'w' then
    return state, ref
  elseif tonumber(ref) > S.head or redis.call('HEXISTS', K.lease, ref) == 1 or redis.call('ZSCORE', K.returned, ref) then
    return state, ref
  else   -- a foreign client took it: it is finished, as far as anybody will ever know
    finish_id(S, id)
    return policy_of(S, 'dedupe_window_ms') > 0 and 'f' or nil, ref
  end
  redis.call('HDEL', K.ids, id)
  redis.call('ZREM', K.forget, id)
  return nil
end

-- Puts messages back at the head, in ticket order with those that came back before. `list` holds {ticket, element,
-- record}.
-- O(k log n + returned messages with smaller tickets).
local function return_to_head(S, list)
  if #list == 0 then return end
  table.sort(list, function(a, b) return a.ticket < b.ticket end)
  local before = 0
  if S.returned > 0 then
    before = redis.call('ZCOUNT', K.returned, '-inf', '(' .. text_of(list[#list].ticket))
  end
  local merged = {}
  if before > 0 then
    local tickets = redis.call('ZRANGE', K.returned, 0, before - 1)
    local elements = redis.call('RPOP', K.q, before)
    local i = 1
    for at, ticket in ipairs(tickets) do
      while i <= #list and list[i].ticket < tonumber(ticket) do
        merged[#merged + 1] = list[i].element
        i = i + 1
      end
      merged[#merged + 1] = elements[at]
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
    members[#members + 1] = ticket
    members[#members + 1] = ticket
    fields[#fields + 1] = ticket
    fields[#fields + 1] = pack_record(entry.record)
  end
  add_members(K.returned, members)
  set_fields(K.side, fields)
  S.returned = S.returned + #list
  S.len = S.len + #list
end

-- Takes one returned message out of the line again (its late ack came). O(its rank among the returned).
local function pull_returned(S, ticket)
  local rank = redis.call('ZRANK', K.returned, ticket)
  local tombstone = 'headway:tombstone:' .. ARGV[1]
  local element = redis.call('LINDEX', K.q, -(rank + 1))
  redis.call('LSET', K.q, -(rank + 1), tombstone)
  redis.call('LREM', K.q, -1, tombstone)
  redis.call('ZREM', K.returned, ticket)
  redis.call('HDEL', K.side, ticket)
  S.returned = S.returned - 1
  S.len = S.len - 1
  return element
end

-- Moves a message to the dead. O(log n).
local function bury(S, ticket, element, record)
  redis.call('ZADD', K.dead, S.now, ticket)
  redis.call('HSET', K.corpse, ticket, pack_both(record, element))
  local id = id_of(element)
  if id ~= '' then redis.call('HSET', K.ids, id, 'x' .. ticket) end
end

-- Keeps a message until `due`. O(log n).
local function set_aside(S, element, record, due)
  add(S, 'seq', 1)
  local seq = string.format('%015.0f', S.seq)
  redis.call('ZADD', K.delayed, due, seq)
  redis.call('HSET', K.later, seq, pack_both(record, element))
  local id = id_of(element)
  if id ~= '' then redis.call('HSET', K.ids, id, 'd' .. seq) end
  return seq
end

-- The wait after so many failures, by the queue's policy.
local function backoff_of(S, failures)
  local longest = policy_of(S, 'max_backoff_ms')
  local wait = math.min(longest, policy_of(S, 'min_backoff_ms') * policy_of(S, 'multiplier') ^ (failures - 1))
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
