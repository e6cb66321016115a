-- @include queue
-- Takes a queue away, and finds deletions that were begun and not finished.

local function remove_all_keys()
  refuse_unread()
  local keys = {}
  for _, name in ipairs(pressure_names()) do keys[#keys + 1] = key_of(name) end
  for _, name in ipairs(own_names()) do keys[#keys + 1] = key_of(name) end
  for _, suffix in ipairs(stale_suffixes()) do keys[#keys + 1] = BASE .. suffix end
  redis.call('UNLINK', unpack(keys))
end

-- A deletion that a foreign client began (no bound, closed, nothing of ours) may still be under way: between two of its
-- steps nobody can tell. Whoever wants the queue gone, or made anew, first notes in x:deleting since when it has been
-- waiting, and takes it over only when the foreign client has had this long to finish.
local FOREIGN_DELETE_MS = 500
local OURS = 'ours'

-- Of a queue without bound: the role whose holder holds its deletion up; nil if nothing does. A foreign client that
-- deletes pops a role's token and then removes it with the name, so for a deletion that it began a role without a name
-- is no obstacle.
local function deletion_obstacle()
  local begun = redis.call('GET', K.deleting)
  if not begun and redis.call('EXISTS', K.closed) == 0 then return nil end
  for _, role in ipairs({ 'producer', 'consumer' }) do
    if not role_is_free(role) and (begun == OURS or redis.call('EXISTS', key_of(role)) == 1) then return role end
  end
  if begun == OURS or redis.call('EXISTS', K.closed) == 0 then return nil end
  if not begun or tonumber(begun) > NOW then   -- or the clock has gone back: its time begins anew
    begun = NOW
    redis.call('SET', K.deleting, text_of(NOW), 'PX', 120 * FOREIGN_DELETE_MS)
  end
  if NOW - tonumber(begun) >= FOREIGN_DELETE_MS then return nil end
  return 'consumer'
end
