-- @include line
-- What time alone does: delayed messages fall due, leases lapse. Up to and including now, in bounded steps.
local DUE_AT_ONCE = 500

-- Delayed messages that are due join the tail, in due order, ties in put order. May overfill the line. O(k log n).
local function promote(S, most)
  local due = redis.call('ZRANGEBYSCORE', K.delayed, '-inf', S.now, 'LIMIT', 0, most)
  if #due == 0 then return 0 end
  local kept = redis.call('HMGET', K.later, unpack(due))
  local elements, sides, ids = {}, {}, {}
  note_time(S, tail_ticket(S) + 1)
  for _, both in ipairs(kept) do
    local record, element = unpack_both(both)
    local ticket = text_of(tail_ticket(S) + 1)
    elements[#elements + 1] = element
    sides[#sides + 1] = ticket
    sides[#sides + 1] = pack_record(record)
    local id = id_of(element)
    if id ~= '' then
      ids[#ids + 1] = id
      ids[#ids + 1] = 'w' .. ticket
    end
    S.len = S.len + 1
  end
  push_tail(elements)
  set_fields(K.side, sides)
  if #ids > 0 then set_fields(K.ids, ids) end
  remove_members(K.delayed, due)
  remove_fields(K.later, due)
  return #due
end

-- Leases whose deadline has come: an attempt is spent; the messages go back to the head, or to the dead. O(k log n).
local function lapse(S, most)
  local tickets = redis.call('ZRANGEBYSCORE', K.leases, '-inf', S.now, 'LIMIT', 0, most)
  if #tickets == 0 then return 0 end
  local records = redis.call('HMGET', K.lease, unpack(tickets))
  local elements = redis.call('HMGET', K.body, unpack(tickets))
  local back = {}
  for i, ticket in ipairs(tickets) do
    local record = unpack_record(records[i])
    record.failures = record.failures + 1
    record.flags = with_flag(record.flags, FLAG.LAPSED)
    record.error = 'the lease lapsed'
    if attempts_are_used_up(S, record.failures) then
      bury(S, ticket, elements[i], record)
    else
      back[#back + 1] = { ticket = tonumber(ticket), element = elements[i], record = record }
    end
  end
  return_to_head(S, back)
  remove_members(K.leases, tickets)
  remove_fields(K.lease, tickets)
  remove_fields(K.body, tickets)
  return #tickets
end

-- Both. True if there may be more that is due already.
local function do_what_is_due(S)
  local moved = lapse(S, DUE_AT_ONCE)
  local joined = promote(S, DUE_AT_ONCE)
  return moved == DUE_AT_ONCE or joined == DUE_AT_ONCE
end
