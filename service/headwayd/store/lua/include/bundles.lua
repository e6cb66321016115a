-- @include queue
-- Bundles. Messages that were leased in one step, and of which no more is known than when they were put, are kept as
-- one thing as long as all that happens to them is that they are acked: three entries for each cost more than all the
-- rest of a lease. Whatever else is to happen to one of them unties its bundle first: what is left of it are leases
-- like any other (x:leases, x:lease, x:body) from then on, and nobody can tell the difference.
--
-- A bundle is named by its step, the random part that the nonces of its leases have in common. x:bundle_at has its
-- deadline, x:bundle_from its first ticket, and x:bundle two fields: 'b' and the step for the elements, as an array in
-- MessagePack, and 'h' and the step for what else there is to know:
--   first      u64  its first ticket; the others follow
--   count      u32  how many it was made of
--   left       u32  how many of these are still leased
--   put when   u16 length + bytes: 'count ms count ms …', as in the reply of a Get
--   settled    a bit for each, the first is the lowest of the first byte: it is leased no longer
--   rest       what the records of all of them end with (see record)
-- The field n_bundled of x:meta counts the leases in bundles.
local BUNDLE_LEAST = 2   -- a single lease is not dearer
-- The elements of the settled stay as long as their bundle. Of many bytes most are given free when few leases are left.
local SPARSE_SHARE, SPARSE_BYTES = 8, 65536
local BUNDLE_HEAD = '>I8I4I4I2'

local function pack_bundle(bundle)
  return struct.pack(BUNDLE_HEAD, bundle.first, bundle.count, bundle.left, #bundle.put_when) .. bundle.put_when
    .. bundle.settled .. bundle.rest
end

-- The bundle of a step; nil if there is none. O(1).
local function read_bundle(S, step)
  local packed = S.n_bundled > 0 and redis.call('HGET', K.bundle, 'h' .. step)
  if not packed then return nil end
  local first, count, left, size, put_at = struct.unpack(BUNDLE_HEAD, packed)
  local settled_at = put_at + size
  local rest_at = settled_at + math.ceil(count / 8)
  return { step = step, first = first, count = count, left = left,
           put_when = string.sub(packed, put_at, settled_at - 1),
           settled = string.sub(packed, settled_at, rest_at - 1), rest = string.sub(packed, rest_at) }
end

local function elements_of(bundle) return cmsgpack.unpack(redis.call('HGET', K.bundle, 'b' .. bundle.step)) end

-- Keeps what was leased in one step, from the ticket `first` on, as a bundle. `packed`: the elements, if they are packed
-- already. O(count + log n).
local function tie(S, step, first, elements, packed, put_when, rest, deadline)
  local bundle = { first = first, count = #elements, left = #elements, put_when = put_when,
                   settled = string.rep('\0', math.ceil(#elements / 8)), rest = rest }
  redis.call('HSET', K.bundle, 'h' .. step, pack_bundle(bundle), 'b' .. step, packed or cmsgpack.pack(elements))
  redis.call('ZADD', K.bundle_at, deadline, step)
  redis.call('ZADD', K.bundle_from, text_of(first), step)
  add(S, 'n_bundled', #elements)
end

-- Some of a bundle's leases have ended: writes it back, or drops it with the last of them. O(count + log n).
local function shrink(S, bundle, left)
  add(S, 'n_bundled', left - bundle.left)
  bundle.left = left
  local step = bundle.step
  if left > 0 then
    redis.call('HSET', K.bundle, 'h' .. step, pack_bundle(bundle))
  else
    redis.call('HDEL', K.bundle, 'h' .. step, 'b' .. step)
    redis.call('ZREM', K.bundle_at, step)
    redis.call('ZREM', K.bundle_from, step)
  end
end

-- Whether a ticket, a number, is one of the bundle that is still leased.
local function is_out(bundle, ticket)
  local at = ticket - bundle.first
  if at < 0 or at >= bundle.count then return false end
  local place = at % 8
  return math.floor(string.byte(bundle.settled, (at - place) / 8 + 1) / 2 ^ place) % 2 == 0
end

-- The bundle that has this ticket among those still leased; nil. O(log n).
local function bundle_with(S, ticket)
  if S.n_bundled == 0 then return nil end
  local step = redis.call('ZREVRANGEBYSCORE', K.bundle_from, ticket, '-inf', 'LIMIT', 0, 1)[1]
  local bundle = step and read_bundle(S, step)
  return bundle and is_out(bundle, tonumber(ticket)) and bundle or nil
end

-- Calls act(at, ticket, packed record) for each of a bundle that is still leased, in ticket order; `at` counts from 1
-- over all that it was made of. O(count).
local function each_of_bundle(bundle, act)
  local at = 0
  for put_count, put_at in string.gmatch(bundle.put_when, '(%d+) (%d+)') do
    local packed = fresh_part(tonumber(put_at)) .. bundle.step .. bundle.rest
    for _ = 1, tonumber(put_count) do
      at = at + 1
      local ticket = bundle.first + at - 1
      if is_out(bundle, ticket) then act(at, text_of(ticket), packed) end
    end
  end
end

-- Makes what is left of a bundle leases of their own. O(count log n).
local function untie(S, bundle)
  local deadline, elements = redis.call('ZSCORE', K.bundle_at, bundle.step), elements_of(bundle)
  local leases, kept, bodies, n = {}, {}, {}, 0
  each_of_bundle(bundle, function(at, ticket, packed)
    leases[n + 1], leases[n + 2] = deadline, ticket
    kept[n + 1], kept[n + 2] = ticket, packed
    bodies[n + 1], bodies[n + 2] = ticket, elements[at]
    n = n + 2
  end)
  add_members(K.leases, leases)
  set_fields(K.lease, kept)
  set_fields(K.body, bodies)
  shrink(S, bundle, 0)
end

-- The same if few are left of it and it keeps many bytes.
local function untie_if_sparse(S, bundle)
  if bundle.left * SPARSE_SHARE > bundle.count then return end
  if redis.call('HSTRLEN', K.bundle, 'b' .. bundle.step) > SPARSE_BYTES then untie(S, bundle) end
end

-- The same for the bundle that has this ticket, if there is one.
local function untie_with(S, ticket)
  local bundle = bundle_with(S, ticket)
  if bundle then untie(S, bundle) end
end

-- How many of its deliveries failed of a message that is leased. O(log n).
local function failures_of_leased(ticket)
  local packed = redis.call('HGET', K.lease, ticket)
  return packed and unpack_record(packed).failures or 0
end
