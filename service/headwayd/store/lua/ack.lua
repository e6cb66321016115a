#!lua flags=allow-oom
-- Settles leases for good.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] result, remembered with the outcome
-- ARGV[4] count, then for each lease: generation, ticket, nonce
-- Reply: echo, OK, now, next due, then status and failures for each; or why there is no queue.
-- O(k log n). A free slot wakes by the leases' change.
-- @include due
-- @include settle
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local results = {}
ack_leases(S, 5, tonumber(ARGV[4]), ARGV[3], results)
local due = commit(S, false, nil)
local reply = { ARGV[1], T.OK, text_of(S.now), text_of(due) }
for _, result in ipairs(results) do
  reply[#reply + 1] = result[1]
  reply[#reply + 1] = result[2]
end
return reply
