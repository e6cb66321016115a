#!lua
-- Takes dead messages of another queue in, at the tail; those that this queue knows already are safe as they are.
-- What was moved away from here counts as not known.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] the generation that the step before told; '' = it is the first, of whichever queue there is
-- ARGV[4] count, then for each: name, how often it came back, put at, last error, element
-- Reply: echo, OK, now, next due, how many of them are safe here, from the first on, how many of these are new, '1' if
--        there is no room, generation; or echo, QUEUE_CLOSED; or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change.
-- @include due
local S, status = open_life(ARGV[3])
if not S then return { ARGV[1], status } end
do_what_is_due(S)
if S.closed then
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_CLOSED }
end
local room = room_for_the_dead(S)
local count, safe, is_full, bytes = tonumber(ARGV[4]), 0, 0, 0
local list, seen = {}, {}
for i = 1, count do
  local at = 5 + 5 * (i - 1)
  local name, element = ARGV[at], ARGV[at + 4]
  local state, _, mark, finished_at = find_name(S, name)
  if state == 'f' and is_given(name) and not is_within_window(S, finished_at) then state = nil end
  -- It went from here, so whoever brings it may have the only one.
  if state == 'f' and mark == MARK.MOVED then state = nil end
  if not state and not seen[name] then
    if #list >= room then
      is_full = 1
      break
    end
    take_name(name)
    seen[name] = true
    local record = new_record(tonumber(ARGV[at + 2]))
    record.replays, record.error = tonumber(ARGV[at + 1]), ARGV[at + 3]
    if not is_given(name) then record.id = name end
    list[#list + 1] = { element = element, record = record, name = name, expires_at = 0 }
    bytes = bytes + #element
  end
  safe = i
end
join_tail(S, list)
if #list > 0 then
  redis.call('INCRBY', K.produced_messages, #list)
  redis.call('INCRBY', K.produced_bytes, bytes)
  add(S, 'seen_prod', #list)
  add(S, 'n_accepted', #list)
  count_rate(S, 'put_sum', #list)
end
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due), safe, #list, is_full, S.gen }
