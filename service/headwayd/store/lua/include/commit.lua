-- @include queue consumers
-- The end of every script that changed something: the state is written back, and whoever waits for it is told.

local LONGEST_WAIT_MS = 100   -- of a lease whose deadline has come, until it lapses (see due)
-- What is due and cannot be done yet is looked after again when it is an eighth later than it was due, but within these.
local SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS = 5, 100

-- When time alone next changes something here: the first due message, deadline, expiry, or thing to forget. 0 = never.
local function next_due(S)
  local due = S.tidy_at
  local function first_of(key, waits_until)
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
    if waits_until and at > 0 and at <= S.now then
      at = math.max(at, math.min(waits_until, at + LONGEST_WAIT_MS))
    end
    if at > 0 and (due == 0 or at < due) then due = at end
  end
  if S.extras > 0 then first_of(K.delayed) end
  -- What should have lapsed may wait; where it was not looked at in this step, for as long as was said.
  local lapse_at = not S.is_put_off and (S.lapse_at or S.due_said)
  first_of(K.leases, lapse_at)
  if S.n_bundled > 0 then first_of(K.bundle_at, lapse_at) end
  if S.expiring == 1 then first_of(K.expiry) end
  if S.standing > 0 and S.extras > 0 then first_of(K.place_at) end
  if S.turn_to ~= '' and (due == 0 or S.turn_at + OFFER_MS < due) then due = S.turn_at + OFFER_MS end
  if S.is_hole_near and (due == 0 or S.now + LONGEST_PAUSE_MS < due) then due = S.now + LONGEST_PAUSE_MS end
  if S.aged < S.tail or S.is_walk_cut then due = S.now end
  return due
end

-- Writes the state back, mends pressure's token, calls the next producer if there is room, and tells all processes of
-- an earlier next due time. Returns that time.
local function commit(S, made_room, me)
  if S.at_commit then S.at_commit(S) end
  if S.log then write_log(S) end
  if S.layout == BLOCKS and S.returned == 0 then set(S, 'layout', ONE_BLOCK) end
  S.size = redis.call('LLEN', K.q)
  S.len = S.size - S.n_holes
  if S.size ~= S.seen_len then set(S, 'seen_len', S.size) end
  mend_not_full(S, made_room or S.made_room)
  if room_of(S) > 0 and has_extra(S, K.producers) then
    if not me or redis.call('ZSCORE', K.producers, me) == false then first_producer(S, nil, true) end
  end
  if S.turn_to ~= '' or S.len > 0 and not S.is_line_empty and redis.call('EXISTS', K.consumers) == 1 then
    call_consumers(S)
  end
  local due = next_due(S)
  if due > 0 and (S.due_said == 0 or due < S.due_said or S.due_said <= S.now) and due ~= S.due_said then
    set(S, 'due_said', due)
    redis.call('PUBLISH', ARGV[2] .. DUE_CHANNEL, text_of(due) .. ' ' .. BASE)
  elseif due == 0 and S.due_said > 0 and S.due_said <= S.now then
    set(S, 'due_said', 0)   -- else each step would look for what is due
  end
  local fields = {}
  for name in pairs(S.dirty) do
    local value = S[name]
    if type(value) == 'number' and value % 1 ~= 0 then value = text_of(value) end   -- of a sum not all digits
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if #fields > 0 then redis.call('HSET', K.meta, unpack(fields)) end
  if S.is_put_off and due > 0 then
    local pause = math.min(math.max(math.floor((S.now - due) / 8), SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)
    return math.max(due, S.now + pause)
  end
  return due
end

-- Opens the queue for a step of a call that has several: those after the first name its generation ('' = this is the
-- first), and when that queue is no more, also if another one has its name, they are told QUEUE_DELETED. nil and a status
-- if there is no such queue.
local function open_life(generation)
  local S, status = open()
  if generation == '' then return S, status end
  if not S then return nil, T.QUEUE_DELETED end
  if is_life(S, generation) then return S end
  commit(S, false, nil)
  return nil, T.QUEUE_DELETED
end
