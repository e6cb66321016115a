#!lua flags=allow-oom
-- Drops those from the consumer line whose process is gone, and gives back, at no attempt's cost, what its streams owned.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- Reply: echo, OK, now, next due; or why there is no queue.
-- O(length of the consumer line + leases owned by streams). Calls the next consumers.
-- @include due
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
walk_consumers(S, nil, false, function() return false end)
local tickets = {}
local owners = redis.call('HGETALL', K.owners)
for i = 1, #owners, 2 do
  if not is_heard(S, process_of(owners[i + 1])) then tickets[#tickets + 1] = owners[i] end
end
if #tickets > 0 then
  local records, elements, back = fields_of(K.lease, tickets), fields_of(K.body, tickets), {}
  for i, ticket in ipairs(tickets) do
    local record = unpack_record(records[i])
    record.flags = with_flag(record.flags, FLAG.RELEASED)
    back[i] = { ticket = tonumber(ticket), element = elements[i], record = record }
  end
  drop_leases(S, tickets, false)
  return_to_head(S, back)
end
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due) }
