#!lua flags=no-writes
-- Finds leases that streams of processes own that are gone, or the stream of one waiter, among some of all leases.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] where to go on, as the step before told; '' = from the first
-- ARGV[4] that waiter; '' = those of processes that are gone
-- ARGV[5…] names of processes that are taken for present, though nobody may hear them now
-- Reply: echo, OK, where to go on ('' = there are no more), their tickets; or why there is no queue.
-- O(leases looked at).
-- @include report
-- @include stands
keep_keys()
local S = load()
if not S then return { ARGV[1], why_absent() } end
local reply = { ARGV[1], T.OK, '' }
if S.is_new then return reply end
local cursor, found = ARGV[3] ~= '' and ARGV[3] or FROM_THE_FIRST, {}
reply[3] = find_owned(S, cursor, absence_of(S, ARGV[4], 5, #ARGV), found)
for _, ticket in ipairs(found) do reply[#reply + 1] = ticket end
return reply
