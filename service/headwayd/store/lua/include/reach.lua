-- How far into the list a step reaches. Tests swap this file.

-- Elements this near to an end of the list are taken out of it at once when their message leaves the line from the
-- middle; what stands deeper stays as a hole until the head has come nearer than half of that.
local NEAR = 4096
-- A message that comes back has at most so many moved that came back before it; where it would be more it begins a block
-- (see `blocks`).
local MOST_MOVED = 2000
-- A step passes at most so many nodes of the list on its ways to elements deep in it, which takes milliseconds, or goes
-- one way. A node has about so many bytes (list-max-listpack-size), or one element that is larger.
local MOST_PASSED, NODE_BYTES = 100000, 8192
