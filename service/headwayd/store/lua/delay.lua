#!lua flags=allow-oom
-- Gives leased messages back, and postpones waiting and delayed ones.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] when: 'b' by the queue's backoff, 'd' + ms from now, 'a' + ms since 1970; now or the past is the head
-- ARGV[4] '1': no attempt is spent; 'o': neither, and their holder's turns are over; 'o' + waiter: the same, and only
--         those go back that this one's stream owns; 'u': no attempt is spent, and leases of an attempt that was asked
--         again stay; 'u' + ARGV[8] of a Get: but if with that all who asked have gone
-- ARGV[5] reason
-- ARGV[6] count of message ids, a blank and the generation that the step before told ('' = it is the first, of whichever
--         queue there is), then the ids
-- then    count of leases, then the leases (see include/settle)
-- Reply: echo, OK, now, next due, generation, then status, failures and available at (ms, '0' = none) for each lease, then
--        for each message id that was dealt with, from the first on, which is one at least; or echo, TOO_FAR; or echo,
--        ROLE_IN_USE, 'producer', holder: foreign clients hold both roles, and until one is free nothing is postponed by
--        id; or why there is no queue.
-- O(k log n), O(NEAR) for each waiting message, and O(MOST_PASSED). Wakes waiting consumers by the line's change.
-- @include due
-- @include settle
local named, life = string.match(ARGV[6], '^(%d+) (%x*)$')
local S, status = open_life(life)
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local when, keeps, reason = ARGV[3], ARGV[4] ~= '0', ARGV[5]
local owner = string.match(ARGV[4], '^o(.+)')
local id_count = tonumber(named)
local lease_count = tonumber(ARGV[7 + id_count])

if string.sub(when, 1, 1) == 'a' and tonumber(string.sub(when, 2)) > S.now + MAX_DELAY_MS then
  commit(S, false, nil)
  return { ARGV[1], T.TOO_FAR }
end

if id_count > 0 and is_unsure(S) then
  commit(S, false, nil)
  return { ARGV[1], T.ROLE_IN_USE, 'producer', holder_of('producer') }
end

local keeps_claimed = string.byte(ARGV[4]) == 117 and not have_all_gone(string.sub(ARGV[4], 2))   -- 'u'

local function due_of(record)
  local kind = string.sub(when, 1, 1)
  if kind == 'b' then return S.now + backoff_of(S, math.max(record.failures, 1)) end
  local at = tonumber(string.sub(when, 2))
  return kind == 'd' and S.now + at or at
end

local function is_over(record) return record.expires_at > 0 and record.expires_at <= S.now end

-- A message whose time is over does not come back.
local function end_it(i, results, ticket, element, record)
  expire(S, ticket, element, record)
  local is_kept = policy_of(S, 'dead_letter_expired') == 1
  results[i] = { is_kept and T.DEAD or T.GONE, is_kept and record.failures or 0, '0' }
end

local results, back, dropped, released = {}, {}, {}, {}
local function put_aside(i, ticket, element, record, due)
  keep_made_id(S, ticket, element, record)
  leave_lease(S, ticket, record)
  set_aside(S, element, record, due, ticket)
  results[i] = { T.DELAYED, record.failures, text_of(due) }
end

each_lease(S, 8 + id_count, lease_count, function(i, ticket, packed)
  local record = unpack_record(packed)
  if keeps_claimed and has_flag(record.flags, FLAG.CLAIMED) then
    results[i] = { T.STALE, record.failures, '0' }
    return false
  end
  if owner and not is_owned_by(owner, owned_as(packed, ticket)) then
    results[i] = { T.STALE, record.failures, '0' }
    return false
  end
  local element = redis.call('HGET', K.body, ticket)
  dropped[#dropped + 1] = ticket
  if reason ~= '' then record.error = reason end
  if keeps then
    record.flags = with_flag(record.flags, FLAG.RELEASED)
  else
    record.failures = record.failures + 1
    if attempts_are_used_up(S, record.failures) then
      bury(S, ticket, element, record, CAUSE.ATTEMPTS)
      results[i] = { T.DEAD, record.failures, '0' }
      return true
    end
  end
  local due = due_of(record)
  if is_over(record) then
    end_it(i, results, ticket, element, record)
  elseif due > S.now then
    put_aside(i, ticket, element, record, due)
  else
    back[#back + 1] = { ticket = tonumber(ticket), element = element, record = record }
    released[ticket] = true
    results[i] = { T.RELEASED, record.failures, '0' }
  end
  return true
end, function(i, ticket, outcome, record, is_of_this_life)
  if owner or outcome ~= T.LAPSED then
    if outcome == T.LAPSED then outcome = T.STALE end   -- it is nobody's, and may be taken up again
    if outcome == T.ALREADY_ACKED then outcome = T.GONE end
    if released[ticket] and is_of_this_life then outcome = T.STALE end   -- named twice
    results[i] = { outcome, record and record.failures or 0, '0' }
    return
  end
  if reason ~= '' then record.error = reason end
  record.flags = without_flag(record.flags, FLAG.LAPSED)
  local due = due_of(record)
  if due > S.now and not is_unsure(S) then   -- else it may be another's element
    local element, whole = take_one(S, ticket)
    record.expires_at = whole.expires_at
    put_aside(i, ticket, element, record, due)
  else
    redis.call('HSET', K.side, ticket, pack_record(record))
    results[i] = { T.RELEASED, record.failures, '0' }
  end
end)
drop_leases(S, dropped, string.sub(ARGV[4], 1, 1) ~= 'o')
give_back(S, back)

-- By id: what waits is taken out of the line, what is delayed gets another time. nil: it is for another step.
local way = {}
local function postpone(name)
  local state, ref = find_name(S, name)
  if state == 'l' then return { T.STALE, 0, '0' } end
  if state ~= 'w' and state ~= 'd' then return { T.GONE, 0, '0' } end
  local packed = state == 'w' and redis.call('HGET', K.side, ref)
  local known = packed and unpack_record(packed) or state == 'd'
    and unpack_both(redis.call('HGET', K.later, string.sub(ref, 2))) or new_record(0)
  local due = due_of(known)
  if state == 'w' and due <= S.now then return { T.RELEASED, known.failures, '0' } end
  if state == 'w' and not is_within_reach(S, way, ref) then return nil end
  if state == 'w' and not packed then known.put_at = put_time(S, tonumber(ref)) end
  local element, record = take_one(S, ref)
  if record.put_at == 0 then record.put_at = known.put_at end
  if reason ~= '' then record.error = reason end
  keep_made_id(S, ref, element, record)
  if state == 'w' then leave_lease(S, ref, record) end
  set_aside(S, element, record, math.max(due, S.now), ref)
  return { T.DELAYED, record.failures, text_of(math.max(due, S.now)) }
end
for i = 1, id_count do
  results[lease_count + i] = postpone(ARGV[6 + i])
  if not results[lease_count + i] then break end
end
local next_due_ms = commit(S, false, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(next_due_ms), S.gen }
for _, result in ipairs(results) do
  for at = 1, 3 do reply[#reply + 1] = result[at] end
end
return reply
