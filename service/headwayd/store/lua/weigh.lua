#!lua flags=no-writes
-- Tells how much of the store's memory the messages of a queue take, waiting, leased, delayed and dead.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused)
-- Reply: echo, OK, bytes, about: of each key a few elements are looked at. 0 if there is no such queue.
-- O(1).
-- @include keys
local bytes = 0
for _, name in ipairs({ 'q', 'body', 'bundle', 'later', 'corpse' }) do
  bytes = bytes + (redis.call('MEMORY', 'USAGE', key_of(name), 'SAMPLES', '20') or 0)
end
return { ARGV[1], T.OK, bytes }
