-- The only clock: the store's, in whole milliseconds since 1970. Tests swap this file for a clock of their own.
local NOW = (function()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end)()
