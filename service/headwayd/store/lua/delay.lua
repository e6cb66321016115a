#!lua flags=allow-oom
-- Gives leased messages back.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] when: 'b' by the queue's backoff, 'd' + ms from now, 'a' + ms since 1970; now or the past is the head
-- ARGV[4] '1': no attempt is spent
-- ARGV[5] reason
-- ARGV[6] count, then for each lease: generation, ticket, nonce
-- Reply: echo, OK, now, next due, then status, failures and available at (ms, '0' = none) for each; or echo,
--        TOO_FAR; or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change.
-- @include due
-- @include settle
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local when, keeps, reason = ARGV[3], ARGV[4] == '1', ARGV[5]

if string.sub(when, 1, 1) == 'a' and tonumber(string.sub(when, 2)) > S.now + MAX_DELAY_MS then
  commit(S, false, nil)
  return { ARGV[1], T.TOO_FAR }
end

local function due_of(record)
  local kind = string.sub(when, 1, 1)
  if kind == 'b' then return S.now + backoff_of(S, math.max(record.failures, 1)) end
  local at = tonumber(string.sub(when, 2))
  return kind == 'd' and S.now + at or at
end

local results, back, dropped, released = {}, {}, {}, {}
local function put_aside(i, ticket, element, record, due)
  if record.id == '' and id_of(element) == '' then record.id = '~' .. S.gen .. '-' .. ticket end
  remember_settled(S, tonumber(ticket), record, 'r')
  set_aside(S, element, record, due)
  results[i] = { T.DELAYED, record.failures, text_of(due) }
end

each_lease(S, 7, tonumber(ARGV[6]), function(i, ticket, record)
  local element = redis.call('HGET', K.body, ticket)
  dropped[#dropped + 1] = ticket
  if reason ~= '' then record.error = reason end
  if keeps then
    record.flags = with_flag(record.flags, FLAG.RELEASED)
  else
    record.failures = record.failures + 1
    if attempts_are_used_up(S, record.failures) then
      bury(S, ticket, element, record)
      results[i] = { T.DEAD, record.failures, '0' }
      return true
    end
  end
  local due = due_of(record)
  if due > S.now then
    put_aside(i, ticket, element, record, due)
  else
    back[#back + 1] = { ticket = tonumber(ticket), element = element, record = record }
    released[ticket] = true
    results[i] = { T.RELEASED, record.failures, '0' }
  end
  return true
end, function(i, ticket, outcome, record)
  if outcome ~= T.LAPSED then
    if outcome == T.ALREADY_ACKED then outcome = T.GONE end
    if released[ticket] then outcome = T.STALE end   -- named twice
    results[i] = { outcome, record and record.failures or 0, '0' }
    return
  end
  if reason ~= '' then record.error = reason end
  record.flags = without_flag(record.flags, FLAG.LAPSED)
  local due = due_of(record)
  if due > S.now then
    put_aside(i, ticket, pull_returned(S, ticket), record, due)
    S.made_room = true
  else
    redis.call('HSET', K.side, ticket, pack_record(record))
    results[i] = { T.RELEASED, record.failures, '0' }
  end
end)
drop_leases(dropped)
return_to_head(S, back)
local next_due_ms = commit(S, S.made_room, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(next_due_ms) }
for _, result in ipairs(results) do
  for at = 1, 3 do reply[#reply + 1] = result[at] end
end
return reply
