#!lua flags=allow-oom
-- Gives back, at no attempt's cost, those leases that streams of processes own that are gone, or the stream of one waiter.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- ARGV[3] that waiter, of which nothing is known any more if no tickets are named; '' = those of processes that are gone
-- ARGV[4] count of processes that are taken for present, though nobody may hear them now; then their names
-- then    tickets of leases; whoever gives back many names the last first, so that each step goes to the head before the
--         ones before
-- Reply: echo, OK, now, next due; or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change.
-- @include due
-- @include stands
keep_keys()
local S, status = open()
if not S then return { ARGV[1], status } end
local first, tickets = 5 + tonumber(ARGV[4]), {}
local is_gone = absence_of(S, ARGV[3], 5, first - 1)
if ARGV[3] == '' then do_what_is_due(S) end   -- else what would lapse now goes back at no attempt's cost, too
for i = first, #ARGV do tickets[#tickets + 1] = ARGV[i] end
release_owned(S, tickets, is_gone)
if ARGV[3] ~= '' and #tickets == 0 then forget_holder(ARGV[3]) end
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due) }
