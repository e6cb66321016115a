-- @include queue
-- A Put of many without its payloads: whatever a script is given becomes a string of Lua's, and a value of the store's
-- again when it is put, which is most of what such a Put costs. So `put` is called twice within one transaction, and
-- between the two calls a plain command puts the payloads where the gate is, if there is one (store/gates.py). The gate
-- is the line itself under another name, which nobody else sees. Both calls are of one script: the store knows both or
-- none.

-- Whether so many messages may join the tail at once, with nothing else to be done there; then the gate is open. OK,
-- GATE_SHUT, or the error of a user who may not rename. Writes nothing else. O(1).
local function open_gate(count, generation)
  local S = load()
  local is_plain = S and not S.is_new and not S.closed and is_life(S, generation)
    and S.pops == 0 and S.pushes == 0 and S.n_holes == 0 and S.aged >= S.tail   -- nothing is to be booked
    and (S.due_said == 0 or S.due_said > S.now)                                 -- and nothing is due
    and role_is_free('producer') and not has_extra(S, K.producers) and room_of(S) >= count
    and policy_of(S, 'time_to_live_ms') == 0 and redis.call('EXISTS', K.gate) == 0
  if not is_plain then return T.GATE_SHUT end
  if S.size == 0 then redis.call('LPUSH', K.q, 'filler') end   -- a line without messages is no key
  local renamed = redis.pcall('RENAME', K.q, K.gate)
  if not renamed.err then return T.OK end
  if S.size == 0 then redis.call('DEL', K.q) end
  return renamed
end

-- The line has its own name again, with what has joined. False if the gate was not open. O(1).
local function close_gate()
  if redis.call('EXISTS', K.gate) == 0 then return false end
  redis.call('RENAME', K.gate, K.q)
  -- It was open only where the line was as long as was noted last.
  if redis.call('HGET', K.meta, 'seen_len') == '0' then redis.call('RPOP', K.q) end
  return true
end
