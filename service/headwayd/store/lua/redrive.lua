#!lua
-- Puts dead messages back at the tail of their own line: one bounded step. They do not expire any more.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] the number of the last one to move; '0' = the last one now
-- ARGV[4] most messages
-- ARGV[5] the generation that the step before told; '' = it is the first, of whichever queue there is
-- ARGV[6…] names: then only these, in this order
-- Reply: echo, OK, now, next due, moved, names dealt with, '1' if there is no room, messages left up to the last one,
--        number of the last one, generation, then the names that are not dead; or echo, QUEUE_CLOSED; or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change.
-- @include due
keep_keys()
local S, status = open_life(ARGV[5])
if not S then return { ARGV[1], status } end
do_what_is_due(S)
if S.closed then
  commit(S, false, nil)
  return { ARGV[1], T.QUEUE_CLOSED }
end
local room = room_for_the_dead(S)
local last, most = tonumber(ARGV[3]), tonumber(ARGV[4])
if last == 0 then last = S.died end
local refs, missing, dealt, is_full = {}, {}, 0, 0
if #ARGV >= 6 then
  local seen = {}
  for i = 6, #ARGV do
    local state, ref = find_name(S, ARGV[i])
    if state == 'x' and not seen[ref] then
      if #refs == most then break end
      if #refs >= room then
        is_full = 1
        break
      end
      seen[ref] = true
      refs[#refs + 1] = ref
    elseif not seen[ref or ''] then
      missing[#missing + 1] = ARGV[i]
    end
    dealt = dealt + 1
  end
else
  local fit = math.min(most, room)
  refs = redis.call('ZRANGEBYSCORE', K.dead, '-inf', last, 'LIMIT', 0, fit)
  if #refs == fit and fit < most and redis.call('ZCOUNT', K.dead, '-inf', last) > #refs then is_full = 1 end
end
local list = {}
for i, corpse in ipairs(fields_of(K.corpse, refs)) do
  local record, element = unpack_corpse(corpse)
  keep_made_id(S, refs[i], element, record)
  leave_lease(S, refs[i], record)
  record.failures, record.replays, record.expires_at = 0, record.replays + 1, 0
  list[i] = { element = element, record = record, name = name_of(element, record), expires_at = 0,
              from = refs[i] }
end
join_tail(S, list)
remove_members(K.dead, refs)
remove_fields(K.corpse, refs)
local left = #ARGV >= 6 and 0 or redis.call('ZCOUNT', K.dead, '-inf', last)
local due = commit(S, false, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(due), #refs, dealt, is_full, left, text_of(last), S.gen }
for _, name in ipairs(missing) do reply[#reply + 1] = name end
return reply
