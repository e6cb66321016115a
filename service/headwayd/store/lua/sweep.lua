#!lua flags=allow-oom
-- Does what time alone brings, and tells when to come again.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels
-- Reply: echo, OK, now, next due ('0' = nothing), '1' if there is more that is due already; or why there is no queue.
-- O(k log n). Wakes waiting consumers by the line's change.
-- @include due
local S, status = open()
if not S then return { ARGV[1], status } end
local is_more = do_what_is_due(S)
local due = commit(S, false, nil)
return { ARGV[1], T.OK, text_of(S.now), text_of(due), is_more and '1' or '0' }
