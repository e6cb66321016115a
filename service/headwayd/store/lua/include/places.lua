-- @include keys blocks record frame
-- Where the messages stand in the list, when some were taken from its middle (withdrawn, expired, postponed, replaced).
--
-- A list cannot lose an element from its middle cheaply. So:
--   x:gaps   the tickets behind the head that are not in line any more: everything behind them moves up by as many.
--   x:holes  those whose element still stands in the list, because it was far from both ends; also tickets of
--            x:returned, which are sorted as they are there. A hole is taken out when the head has come near, long
--            before a foreign client could pop it.
-- While it is not sure where what stands (`is_unsure`) whatever leaves the line is a hole, but where an id tells it apart.
-- S.returned counts the elements of returned messages, holes among them; S.n_gaps and S.n_holes are the sets' sizes.

local LOOKED_AT = 100   -- gaps that are passed one by one before it is looked how far they go on

-- The last ticket, from this one on, of which each is a gap, and none a hole. O(log n) looks.
local function end_of_gaps(S, ticket)
  local low, high, above = ticket, S.tail, '(' .. text_of(ticket)
  while low < high do
    local middle = math.ceil((low + high) / 2)
    local gone = redis.call('ZCOUNT', K.gaps, above, text_of(middle))
    if S.n_holes > 0 then gone = gone - redis.call('ZCOUNT', K.holes, above, text_of(middle)) end
    if gone == middle - ticket then low = middle else high = middle - 1 end
  end
  return low
end

-- Goes over the first `most` elements of the list from the head on, without changing anything. `visit(i, ticket)`, if
-- given, is called for each that is no hole, and ends the walk before it by returning false. O(runs of gaps, each of
-- log n) and, with `visit`, O(elements visited). The result tells what `take_walked` shall take.
local function walk(S, most, visit)
  local W = { returned = 0, head = S.head, holes = 0, count = 0 }
  if not visit and S.n_gaps == 0 and S.n_holes == 0 then
    W.returned = math.min(most, S.returned)
    W.head = S.head + most - W.returned
    W.count = most
    return W
  end
  local tickets = S.returned > 0 and most > 0 and redis.call('ZRANGE', K.returned, 0, most - 1) or {}
  for _, ticket in ipairs(tickets) do
    local is_hole = S.n_holes > 0 and redis.call('ZSCORE', K.holes, ticket)
    if is_hole then
      W.holes = W.holes + 1
    elseif visit and visit(W.count + 1, ticket) == false then
      return W
    end
    W.returned, W.count = W.returned + 1, W.count + 1
  end
  local gaps, at, from, passed = {}, 1, S.head, 0
  local function next_gap()
    if S.n_gaps == 0 then return nil end
    if at > #gaps and from then
      gaps = redis.call('ZRANGEBYSCORE', K.gaps, '(' .. text_of(from), '+inf', 'LIMIT', 0, 100)
      at = 1
      from = #gaps == 100 and tonumber(gaps[100]) or nil
    end
    return gaps[at] and tonumber(gaps[at])
  end
  while W.head < S.tail do
    local gap = next_gap()
    if gap == W.head + 1 then
      if S.n_holes > 0 and redis.call('ZSCORE', K.holes, gaps[at]) then
        if W.count == most then break end
        W.holes, W.count = W.holes + 1, W.count + 1
      end
      at, passed = at + 1, passed + 1
      W.head = gap
      if passed == LOOKED_AT then   -- a million more may follow
        W.head = end_of_gaps(S, gap)
        gaps, at, from, passed = {}, 1, W.head, 0
      end
    elseif W.count == most then
      break
    elseif visit then
      if visit(W.count + 1, text_of(W.head + 1)) == false then break end
      W.head, W.count = W.head + 1, W.count + 1
    else
      local run = math.min(most - W.count, (gap or S.tail + 1) - W.head - 1)
      W.head, W.count = W.head + run, W.count + run
    end
  end
  return W
end

-- Books that what a walk went over has left the list. Returns the tickets of the returned among it. O(log n + taken).
local function take_walked(S, W)
  local returned = {}
  if W.returned > 0 then
    returned = redis.call('ZRANGE', K.returned, 0, W.returned - 1)
    redis.call('ZREMRANGEBYRANK', K.returned, 0, W.returned - 1)
    S.returned = S.returned - W.returned
    if W.holes > 0 then
      each_chunk(returned, CHUNK, function(part)
        local removed = redis.call('ZREM', K.holes, unpack(part))
        if removed > 0 then add(S, 'n_holes', -removed) end
      end)
    end
  end
  if W.head > S.head then
    if S.n_gaps > 0 then
      local removed = redis.call('ZREMRANGEBYSCORE', K.gaps, '-inf', text_of(W.head))
      if removed > 0 then add(S, 'n_gaps', -removed) end
      if W.holes > 0 and S.n_holes > 0 then
        removed = redis.call('ZREMRANGEBYSCORE', K.holes, '(' .. text_of(S.head), text_of(W.head))
        if removed > 0 then add(S, 'n_holes', -removed) end
      end
    end
    set(S, 'head', W.head)
  end
  return returned
end

-- The gaps that have come to stand right behind the head are passed. Amortised O(log n) per gap.
local function pass_gaps(S)
  if S.n_gaps > 0 then take_walked(S, walk(S, 0)) end
end

local function count_between(key, above, below)
  return redis.call('ZCOUNT', key, '(' .. text_of(above), '(' .. text_of(below))
end

-- How many elements of returned messages are holes.
local function returned_holes(S)
  if S.n_holes == 0 or S.returned == 0 then return 0 end
  return redis.call('ZCOUNT', K.holes, '-inf', text_of(S.head))
end

-- The place of a ticket among the elements of the list, 0 = the head; for a ticket that has an element. O(log n).
local function index_of(S, ticket)
  local number = tonumber(ticket)
  if number <= S.head then return redis.call('ZRANK', K.returned, ticket) end
  local index = S.returned + number - S.head - 1
  if S.n_gaps > 0 then index = index - count_between(K.gaps, S.head, number) end
  if S.n_holes > 0 then index = index + count_between(K.holes, S.head, number) end
  return index
end

-- Whether a step may also go to this waiting message in the list, after those to which its `way` (a table, empty at first)
-- has led so far, of which the first is free: each way passes all nodes between an end of the list and the element, and
-- they are the more the longer the line. `together`: to those that stand side by side there is but one. O(log n).
local function is_within_reach(S, way, ticket, together)
  if S.size <= 2 * NEAR then return true end
  local index, before = index_of(S, ticket), way.index
  way.index = index
  if together and before and index == before + 1 then return true end
  if not way.nodes then   -- for each element, by the mean size of all that were ever put
    local bytes = tonumber(redis.call('GET', K.produced_bytes)) or math.huge
    way.nodes = math.min(1, bytes / S.prod / NODE_BYTES)
  end
  way.passed = (way.passed or 0) + way.nodes * math.min(index, S.size - index)
  return not before or way.passed <= MOST_PASSED
end

-- The 1-based rank of a waiting message. O(log n).
local function position_of(S, ticket)
  local number = tonumber(ticket)
  if number <= S.head then
    local rank = redis.call('ZRANK', K.returned, ticket) + 1
    return S.n_holes > 0 and rank - redis.call('ZCOUNT', K.holes, '-inf', '(' .. order_of(S, ticket)) or rank
  end
  local position = S.returned - returned_holes(S) + number - S.head
  return S.n_gaps > 0 and position - count_between(K.gaps, S.head, number) or position
end

-- Whether the message with this ticket waits. O(log n).
local function is_waiting(S, ticket)
  local number = tonumber(ticket)
  if number > S.head then
    return number <= S.tail and (S.n_gaps == 0 or not redis.call('ZSCORE', K.gaps, ticket))
  end
  return redis.call('ZSCORE', K.returned, ticket) and (S.n_holes == 0 or not redis.call('ZSCORE', K.holes, ticket))
end

-- Removes the elements at these places from the list: marked, then swept up from both ends. O(the deepest).
local function remove_elements(indexes, size)
  local mark = 'headway:removed:' .. ARGV[1]
  local from_head, from_tail = 0, 0
  for _, index in ipairs(indexes) do
    redis.call('LSET', K.q, -(index + 1), mark)
    if index < size - index then from_head = from_head + 1 else from_tail = from_tail + 1 end
  end
  if from_head > 0 then redis.call('LREM', K.q, -from_head, mark) end
  if from_tail > 0 then redis.call('LREM', K.q, from_tail, mark) end
end

-- The element of a waiting message that may stand one place nearer to the head than its ticket says, and its place: known
-- by an id that names it. '' and false if none does.
local function element_with_id(ticket, index)
  for i, element in ipairs(redis.call('LRANGE', K.q, -(index + 1), -math.max(index, 1))) do
    local id = read_frame(element)
    if id and redis.call('HGET', K.ids, id) == 'w' .. ticket then return element, index + 1 - i end
  end
  return '', false
end

-- Whether a foreign client has popped a waiting message with an id of its own and that is not booked yet: it stands at
-- neither of its two places.
local function is_taken_unseen(S, name, ticket)
  return is_given(name) and is_unsure(S) and not select(2, element_with_id(ticket, index_of(S, ticket)))
end

-- The elements at these places of the list. Those that stand side by side are read together: it is the way there that
-- costs (is_within_reach).
local function elements_at(indexes)
  local elements, from = {}, 1
  while from <= #indexes do
    local to = from
    while indexes[to + 1] == indexes[to] + 1 do to = to + 1 end
    local part = redis.call('LRANGE', K.q, -(indexes[to] + 1), -(indexes[from] + 1))
    for i = #part, 1, -1 do elements[#elements + 1] = part[i] end
    from = to + 1
  end
  return elements
end

-- Takes waiting messages out of the line wherever they stand; all behind move up. Returns their elements and records
-- (false where none is kept). While it is not sure where they stand (`is_unsure`) they are told only of those that an
-- id names, '' of others. O(log n) each, O(NEAR) once, and the ways to them: who has many asks is_within_reach first.
local function take_out(S, tickets)
  local elements, indexes, sides, unsure = {}, {}, fields_of(K.side, tickets), is_unsure(S)
  for i, ticket in ipairs(tickets) do
    indexes[i] = index_of(S, ticket)
    if unsure then
      elements[i], indexes[i] = element_with_id(ticket, indexes[i])
      S.is_hole_near = S.is_hole_near or not indexes[i]
    end
  end
  if not unsure then elements = elements_at(indexes) end
  local size, near = S.size, {}
  for i, ticket in ipairs(tickets) do
    local number, index = tonumber(ticket), indexes[i]
    local is_near = index and (index < NEAR or size - index <= NEAR)
    if number > S.head then
      redis.call('ZADD', K.gaps, ticket, ticket)
      add(S, 'n_gaps', 1)
    elseif is_near then
      redis.call('ZREM', K.returned, ticket)
      S.returned = S.returned - 1
    end
    if is_near then
      near[#near + 1] = index
    else
      redis.call('ZADD', K.holes, number > S.head and ticket or order_of(S, ticket), ticket)
      add(S, 'n_holes', 1)
    end
  end
  remove_elements(near, size)
  remove_fields(K.side, tickets)
  S.size = S.size - #near
  S.len = S.len - #tickets
  S.made_room = true
  pass_gaps(S)
  local records = {}
  for i = 1, #tickets do records[i] = sides[i] and unpack_record(sides[i]) end
  return elements, records
end

-- A message that comes back while its element still stands in the list as a hole waits again where that stands. Only
-- one whose lapsed lease Extend took up again has one. Returns whether it does. O(log n).
local function fill_again(S, ticket)
  if S.n_holes == 0 or redis.call('ZREM', K.holes, ticket) == 0 then return false end
  add(S, 'n_holes', -1)
  S.len = S.len + 1
  return true
end

-- Takes holes out of the list once the head has come near to the first. O(NEAR), rarely.
local function fill_holes(S)
  local first = redis.call('ZRANGE', K.holes, 0, 0)[1]
  if not first or index_of(S, first) >= NEAR / 2 then return end
  S.is_hole_near = is_unsure(S)
  if S.is_hole_near then return end
  local filled, indexes = {}, {}
  for _, ticket in ipairs(redis.call('ZRANGE', K.holes, 0, NEAR)) do
    local index = index_of(S, ticket)
    if index >= NEAR then break end
    filled[#filled + 1] = ticket
    indexes[#indexes + 1] = index
  end
  remove_elements(indexes, math.huge)
  S.size = S.size - #indexes
  remove_members(K.holes, filled)
  add(S, 'n_holes', -#filled)
  for _, ticket in ipairs(filled) do
    if tonumber(ticket) <= S.head then
      redis.call('ZREM', K.returned, ticket)
      S.returned = S.returned - 1
    end
  end
  pass_gaps(S)
end
