#!lua flags=allow-oom
-- Changes policy fields.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] '1': max_backoff_ms, if it is to change, becomes min_backoff_ms where that is longer; '' = it does not
-- ARGV[4…] name and value of each field to change
-- Reply: echo, OK, report; or echo, CONTRADICTION, names of fields that would be below what they bound; or echo and why
--        there is no queue. Fields that contradict each other already, none of which changes, keep no other change out.
-- O(1). Wakes the first waiting producer if there is room now, and all who wait for a slot.
-- @include report
local S, status = open()
if not S then return { ARGV[1], status } end
local changes, wrong = {}, { ARGV[1], T.CONTRADICTION }
for i = 4, #ARGV, 2 do changes[ARGV[i]] = ARGV[i + 1] end
local function value_of(name) return tonumber(changes[name] or policy_of(S, name)) end
if ARGV[3] == '1' and changes.max_backoff_ms then
  changes.max_backoff_ms = text_of(math.max(value_of('max_backoff_ms'), value_of('min_backoff_ms')))
end
local function check(lower, upper)
  if not (changes[lower] or changes[upper]) then return end
  if value_of(upper) < value_of(lower) then wrong[#wrong + 1] = upper end
end
check('min_backoff_ms', 'max_backoff_ms')
check('poll_base_ms', 'poll_max_ms')
if #wrong > 2 then
  commit(S, false, nil)
  return wrong
end
local made_room = false
for name, value in pairs(changes) do
  if name == 'bound' then
    redis.call('SET', K.bound, value, 'KEEPTTL')
    local before = S.bound
    S.bound = tonumber(value)
    made_room = before > 0 and (S.bound == 0 or S.bound > before)
  else
    redis.call('HSET', K.meta, name, value)
  end
end
commit(S, made_room, nil)
redis.call('PUBLISH', ARGV[2] .. DUE_CHANNEL, 'kick ' .. BASE)
S.is_booked = true
return answer(S, T.OK)
