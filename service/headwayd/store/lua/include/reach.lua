-- Elements this near to an end of the list are taken out of it at once when their message leaves the line from the
-- middle; what stands deeper stays as a hole until the head has come nearer than half of that. Tests swap this file.
local NEAR = 4096
