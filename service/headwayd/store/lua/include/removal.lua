-- @include queue
-- Takes a queue away, and finds deletions that were begun and not finished.

local function remove_all_keys()
  local keys = {}
  for _, name in ipairs(PRESSURE_NAMES) do keys[#keys + 1] = K[name] end
  for _, name in ipairs(OWN_NAMES) do keys[#keys + 1] = K[name] end
  for _, suffix in ipairs(STALE_SUFFIXES) do keys[#keys + 1] = BASE .. suffix end
  redis.call('UNLINK', unpack(keys))
end

-- Of a queue without bound: the role whose holder holds its deletion up; nil if nothing does. A foreign client that deletes
-- pops the role's token and removes it with the name: from then on the role is no obstacle. Between its steps nobody can
-- tell a deletion from its remains, so whatever a foreign client began counts as under way.
local function unfinished_deletion()
  local is_ours = redis.call('EXISTS', K.deleting) == 1
  if not is_ours and redis.call('EXISTS', K.closed) == 0 then return nil end
  for _, role in ipairs({ 'producer', 'consumer' }) do
    if not role_is_free(role) and (is_ours or redis.call('EXISTS', K[role]) == 1) then return role end
  end
  if not is_ours then return 'consumer' end
  return nil
end
