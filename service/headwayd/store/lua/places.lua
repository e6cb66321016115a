#!lua flags=allow-oom
-- Tells where messages are, and begins or goes on to log what happens to them.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] '1': tell the shape of the line, too; ARGV[4] most tickets of it
-- ARGV[5…] names of messages
-- Reply: echo, OK, the policy's poll_base_ms, poll_per_position_ms and poll_max_ms, the numbers (include/numbers), '1' if
--        the shape follows, count of those that came back, what these are sorted by (include/blocks), count of gaps,
--        these, then for each name: state ('waiting' | 'leased' | 'delayed' | 'dead' | 'finished' | 'unknown'), reference,
--        position, attempt, progress, mark, result, last error, due; or why there is no queue.
-- O(k log n + tickets told).
-- @include numbers
keep_keys()
local S, status = open()
if not S then return { ARGV[1], status } end
keep_watching(S)
commit(S, false, nil)
local reply = { ARGV[1], T.OK }
local function put_all(values) for _, value in ipairs(values) do reply[#reply + 1] = value end end
add_polls(S, reply)
put_all(line_numbers(S))

if ARGV[3] == '1' and S.returned + S.n_gaps <= tonumber(ARGV[4]) then
  local returned = {}
  local both = redis.call('ZRANGE', K.returned, 0, -1, 'WITHSCORES')
  for i = 1, #both, 2 do
    if S.n_holes == 0 or not redis.call('ZSCORE', K.holes, both[i]) then returned[#returned + 1] = both[i + 1] end
  end
  local gaps = redis.call('ZRANGE', K.gaps, 0, -1)
  put_all({ '1', #returned })
  put_all(returned)
  put_all({ #gaps })
  put_all(gaps)
else
  put_all({ '0', 0, 0 })
end

local function place_of(name)
  local state, ref, mark, _, _, had_result = find_name(S, name)
  if state == 'w' then return { 'waiting', ref, text_of(position_of(S, ref)), 0, '', '', '', '', '0' } end
  if state == 'l' then
    local progress = redis.call('HGET', K.progress, ref) or ''
    return { 'leased', ref, 0, failures_of_leased(ref) + 1, progress, '', '', '', '0' }
  end
  if state == 'd' then
    local due = redis.call('ZSCORE', K.delayed, string.sub(ref, 2))
    return { 'delayed', ref, 0, 0, '', '', '', '', due }
  end
  if state == 'x' then
    local record = unpack_corpse(redis.call('HGET', K.corpse, ref))
    return { 'dead', ref, 0, record.failures, '', '', '', record.error, '0' }
  end
  if state == 'f' then
    local _, result = ending_of(S, ref)
    if result or not had_result then   -- else it is forgotten, and DONE without it would say that there was none
      return { 'finished', ref, 0, 0, '', mark, mark == MARK.DONE and result or '', '', '0' }
    end
  end
  return { 'unknown', '', 0, 0, '', '', '', '', '0' }
end
for i = 5, #ARGV do put_all(place_of(ARGV[i])) end
return reply
