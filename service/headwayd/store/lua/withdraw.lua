#!lua flags=allow-oom
-- Cancels messages that wait or are delayed.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels; ARGV[3] generation in which they are to be withdrawn,
-- '' = whichever it is; ARGV[4…] names of messages
-- Reply: echo, OK, now, next due, generation, then for each, from the first on, that was dealt with, which is one at
--        least: WITHDRAWN | LEASED | FINISHED | UNKNOWN, and how it finished (a mark); or why there is no queue.
-- O(k log n), and O(NEAR + MOST_PASSED) once for those that wait. Room in the line wakes the first waiting producer.
-- @include due
local S, status = open_life(ARGV[3])
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local results, tickets, seqs, seen, way = {}, {}, {}, {}, {}
for i = 4, #ARGV do
  local state, ref, mark = find_name(S, ARGV[i])
  local result = { T.UNKNOWN, '' }
  if state == 'l' then
    result = { T.LEASED, '' }
  elseif state == 'x' then
    result = { T.FINISHED, 'dead' }
  elseif state == 'f' then
    result = { T.FINISHED, mark }
  elseif state and seen[ref] then
    result = { T.FINISHED, MARK.WITHDRAWN }
  elseif state == 'w' and not is_within_reach(S, way, ref, not is_unsure(S)) then
    break
  elseif state == 'w' and is_taken_unseen(S, ARGV[i], ref) then
    result = { T.FINISHED, MARK.TAKEN }
  elseif state then
    seen[ref] = true
    if state == 'w' then tickets[#tickets + 1] = ref else seqs[#seqs + 1] = string.sub(ref, 2) end
    result = { T.WITHDRAWN, '' }
  end
  results[#results + 1] = result
end
local function end_all(refs, elements, records)
  for i, ref in ipairs(refs) do finish(S, ref, records[i] or nil, elements[i], MARK.WITHDRAWN, '') end
  if S.expiring == 1 then remove_members(K.expiry, refs) end
end
if #tickets > 0 then end_all(tickets, take_out(S, tickets)) end
if #seqs > 0 then
  local elements, records = take_delayed(S, seqs)
  local refs = {}
  for i, seq in ipairs(seqs) do refs[i] = 'd' .. seq end
  end_all(refs, elements, records)
end
if #tickets + #seqs > 0 then add(S, 'n_withdrawn', #tickets + #seqs) end
local due = commit(S, false, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(due), S.gen }
for _, result in ipairs(results) do
  reply[#reply + 1] = result[1]
  reply[#reply + 1] = result[2]
end
return reply
