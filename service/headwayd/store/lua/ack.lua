#!lua flags=allow-oom
-- Settles leases for good.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] result, remembered with the outcome
-- ARGV[4] count, then the leases (see include/settle)
-- Reply: echo, OK, now, next due, how many were not acked at their first attempt, then number (from 1 on), status and
--        failures of each of those; or why there is no queue.
-- O(k log n). A free slot wakes by the leases' change.
-- @include due
-- @include settle
local S, status = open()
if not S then return { ARGV[1], status } end
do_what_is_due(S)
local reply = { ARGV[1], T.OK, S.now, 0 }
ack_leases(S, 5, tonumber(ARGV[4]), ARGV[3], reply)
reply[4] = commit(S, false, nil)
return reply
