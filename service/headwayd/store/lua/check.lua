#!lua flags=no-writes
-- Tells whether everything kept of a queue fits together.
-- KEYS[1] base key; ARGV[1] echo; ARGV[2] prefix of all channels (unused); ARGV[3] most entries
-- Reply: echo, OK | TOO_LARGE, entries, count of findings, findings, the report; or why there is no queue.
-- O(entries).
-- @include line
-- @include report
local MOST_FINDINGS, PART, OVERDUE_MS = 100, 1000, 5000
if redis.call('EXISTS', K.bound) == 0 then return { ARGV[1], why_absent() } end

local SUFFIX = suffixes()
local findings = {}
local function find(key, text, ...)
  if #findings < MOST_FINDINGS then findings[#findings + 1] = key .. ': ' .. string.format(text, ...) end
end
local function expect(holds, key, ...) if not holds then find(key, ...) end end

-- The wrong kind of a key would stop every other look.
local KINDS = { bound = 'string', producer = 'string', consumer = 'string', deleting = 'string',
  produced_messages = 'string', produced_bytes = 'string', consumed_messages = 'string', consumed_bytes = 'string',
  q = 'list', producer_free = 'list', consumer_free = 'list', not_full = 'list', closed = 'list',
  meta = 'hash', times = 'list', returned = 'zset', side = 'hash', leases = 'zset', lease = 'hash', body = 'hash',
  bundle = 'hash', bundle_at = 'zset', bundle_from = 'zset',
  gaps = 'zset', holes = 'zset', expiry = 'zset', delayed = 'zset', later = 'hash', dead = 'zset', corpse = 'hash',
  ids = 'hash', forget = 'zset', acked = 'hash', acked_at = 'zset', attempts = 'hash', attempt_at = 'zset',
  owners = 'hash', held = 'hash', turns = 'hash', producers = 'zset', consumers = 'zset', places = 'hash',
  place_at = 'zset', progress = 'hash', log = 'list', blocked = 'hash' }
local SIZES = { list = 'LLEN', hash = 'HLEN', zset = 'ZCARD' }
local entries, has_wrong_kind = 0, false
for name, kind in pairs(KINDS) do
  local found = redis.call('TYPE', key_of(name)).ok
  if found ~= 'none' and found ~= kind then
    find(SUFFIX[name], 'is a %s, must be a %s', found, kind)
    has_wrong_kind = true
  elseif SIZES[found] then
    entries = entries + redis.call(SIZES[kind], key_of(name))
  end
end
local S
local function reply_with(status)
  local reply = { ARGV[1], status, entries, #findings }
  for _, finding in ipairs(findings) do reply[#reply + 1] = finding end
  local is_readable, values = pcall(report, S)
  for _, value in ipairs(is_readable and values or {}) do reply[#reply + 1] = value end
  return reply
end
if has_wrong_kind then return reply_with(T.OK) end
keep_keys()
S = load()
entries = entries + S.n_bundled
if entries > tonumber(ARGV[3]) then return reply_with(T.TOO_LARGE) end

-- What is due is done soon, but it waits where foreign clients hold both roles; that is told once, at the end.
local oldest_waiting = S.now
local function expect_swept(key, at, text, ref)
  if S.now - at < OVERDUE_MS then return end
  if is_unsure(S) then
    oldest_waiting = math.min(oldest_waiting, at)
  else
    find(key, text .. ' %d s ago: does no service sweep?', ref, (S.now - at) / 1000)
  end
end

-- pressure's keys.
for _, role in ipairs({ 'producer', 'consumer' }) do
  local tokens = redis.call('LLEN', key_of(role .. '_free'))
  expect(tokens <= 1, SUFFIX[role .. '_free'], 'has %d tokens, at most 1 is right', tokens)
end
local closed = redis.call('LLEN', K.closed)
expect(closed == 0 or closed == 2, SUFFIX.closed, 'has %d tokens, 0 or 2 are right', closed)
for _, name in ipairs({ 'produced_messages', 'produced_bytes', 'consumed_messages', 'consumed_bytes' }) do
  local value = redis.call('GET', key_of(name)) or '0'
  expect(string.match(value, '^%d+$'), SUFFIX[name], 'is no count: %s', string.sub(value, 1, 40))
end
expect(string.match(redis.call('GET', K.bound), '^%d+$'), SUFFIX.bound, 'is no number')
if S.is_new then   -- a foreign client's: nothing of ours is booked yet
  for _, name in ipairs(S.is_remade and {} or own_names()) do
    expect(redis.call('EXISTS', key_of(name)) == 0, SUFFIX.meta, 'is missing, though there is %s', SUFFIX[name])
  end
  return reply_with(T.OK)
end
local is_quiet = S.pops == 0 and S.pushes == 0 and role_is_free('producer') and role_is_free('consumer')
if is_quiet and S.adopted_at == 0 then
  local tokens, right = redis.call('LLEN', K.not_full), (S.bound == 0 or S.len < S.bound) and 1 or 0
  expect(tokens == right, SUFFIX.not_full, 'has %d tokens, must have %d: %d wait, the bound is %d', tokens, right, S.len,
    S.bound)
end

-- Every member of a sorted set, or field of a hash, in parts. What a look trips over is a finding, too.
local function look(name, act, member, value)
  if not pcall(act, member, value) then find(SUFFIX[name], 'cannot make sense of %s', string.sub(member, 1, 40)) end
end
local function each_member(name, act)
  local size = redis.call('ZCARD', key_of(name))
  for from = 0, size - 1, PART do
    local part = redis.call('ZRANGE', key_of(name), from, from + PART - 1, 'WITHSCORES')
    for i = 1, #part, 2 do look(name, act, part[i], tonumber(part[i + 1])) end
  end
end
local function each_field(name, act)
  local cursor, seen = '0', {}
  repeat
    local found = redis.call('HSCAN', key_of(name), cursor, 'COUNT', PART)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      if not seen[found[2][i]] then
        seen[found[2][i]] = true
        look(name, act, found[2][i], found[2][i + 1])
      end
    end
  until cursor == '0'
end
-- That a sorted set and a hash have the same members.
local function expect_same(members, fields)
  local known = {}
  each_member(members, function(member) known[member] = true end)
  each_field(fields, function(field)
    expect(known[field], SUFFIX[fields], 'has %s, which %s has not', field, SUFFIX[members])
    known[field] = nil
  end)
  for member in pairs(known) do find(SUFFIX[members], 'has %s, which %s has not', member, SUFFIX[fields]) end
end

-- The line: which ticket has which element.
local gaps, holes, returned, waiting = {}, {}, {}, {}
expect(S.head <= S.tail, SUFFIX.meta, 'head %s is beyond tail %s', text_of(S.head), text_of(S.tail))
each_member('gaps', function(ticket, score)
  gaps[ticket] = true
  expect(score == tonumber(ticket), SUFFIX.gaps, 'ticket %s has the score %s', ticket, text_of(score))
  expect(score > S.head and score <= S.tail, SUFFIX.gaps, 'ticket %s is not behind the head', ticket)
end)
local order = {}
each_member('returned', function(ticket, score)
  returned[ticket] = score
  order[#order + 1] = ticket
  local is_in_block = S.layout == BLOCKS and score < 0 and score % BLOCK == tonumber(ticket)
  expect(is_in_block or score == tonumber(ticket), SUFFIX.returned, 'ticket %s has the score %s', ticket, text_of(score))
  expect(tonumber(ticket) <= S.head, SUFFIX.returned, 'ticket %s never left the line', ticket)
end)
each_member('holes', function(ticket, score)
  holes[ticket] = true
  expect(score == (returned[ticket] or tonumber(ticket)), SUFFIX.holes, 'ticket %s has the score %s', ticket, text_of(score))
end)
for ticket in pairs(holes) do
  expect(gaps[ticket] or returned[ticket], SUFFIX.holes, 'ticket %s is no gap and did not come back', ticket)
end
expect(S.n_gaps == redis.call('ZCARD', K.gaps), SUFFIX.meta, 'n_gaps is not the size of %s', SUFFIX.gaps)
expect(S.n_holes == redis.call('ZCARD', K.holes), SUFFIX.meta, 'n_holes is not the size of %s', SUFFIX.holes)
if is_quiet then
  for number = S.head + 1, S.tail do
    local ticket = text_of(number)
    if not gaps[ticket] or holes[ticket] then order[#order + 1] = ticket end
  end
  expect(#order == S.size, SUFFIX.q, 'has %d elements, its tickets are %d', S.size, #order)
  local first = text_of(S.head + 1)
  expect(not gaps[first] or holes[first], SUFFIX.gaps, 'ticket %s stands right behind the head', first)
  for from = 0, S.size - 1, PART do
    local part = redis.call('LRANGE', K.q, -(from + PART), -(from + 1))
    for i = #part, 1, -1 do
      local ticket = order[from + 1 + #part - i]
      if ticket and not holes[ticket] then waiting[ticket] = (id_of(part[i])) end
    end
  end
  each_field('side', function(ticket)
    expect(waiting[ticket], SUFFIX.side, 'has ticket %s, which does not wait', ticket)
  end)
  for ticket in pairs(returned) do
    local has_side = redis.call('HEXISTS', K.side, ticket) == 1
    expect(has_side or holes[ticket], SUFFIX.side, 'has no record of ticket %s, which came back', ticket)
  end
end

-- Bundles; what is in them is leased, too.
local bundled, bundled_count, of_step = {}, 0, {}
local heads = {}
each_field('bundle', function(field)
  local kind, step = string.sub(field, 1, 1), string.sub(field, 2)
  heads[step] = (heads[step] or '') .. kind
  if kind == 'b' then return end
  local bundle, left = read_bundle(S, step), 0
  expect(bundle.left > 0 and bundle.first + bundle.count - 1 <= S.head, SUFFIX.bundle,
    'the bundle from %s on is empty, or never left the line', text_of(bundle.first))
  expect(#elements_of(bundle) == bundle.count, SUFFIX.bundle, 'the bundle from %s on has not %d elements',
    text_of(bundle.first), bundle.count)
  each_of_bundle(bundle, function(_, ticket)
    expect(not bundled[ticket], SUFFIX.bundle, 'ticket %s is in two bundles', ticket)
    bundled[ticket], left = true, left + 1
  end)
  expect(left == bundle.left, SUFFIX.bundle, 'the bundle from %s on says %d are leased of %d', text_of(bundle.first),
    bundle.left, left)
  expect(tonumber(redis.call('ZSCORE', K.bundle_from, step)) == bundle.first, SUFFIX.bundle_from,
    'does not have the bundle from %s on', text_of(bundle.first))
  expect(redis.call('ZSCORE', K.bundle_at, step), SUFFIX.bundle_at, 'does not have the bundle from %s on',
    text_of(bundle.first))
  bundled_count = bundled_count + left
  of_step[step] = left
end)
for _, kinds in pairs(heads) do expect(#kinds == 2, SUFFIX.bundle, 'has but one half of a bundle') end
for _, name in ipairs({ 'bundle_at', 'bundle_from' }) do
  each_member(name, function(step, score)
    expect(heads[step], SUFFIX[name], 'has a bundle that %s has not', SUFFIX.bundle)
    if name == 'bundle_at' then expect_swept(SUFFIX[name], score, '%s lapsed', 'a bundle') end
  end)
end
expect(bundled_count == S.n_bundled, SUFFIX.meta, 'n_bundled is %s, and %d leases are in %s', text_of(S.n_bundled),
  bundled_count, SUFFIX.bundle)
local function is_leased(ticket) return bundled[ticket] or redis.call('HEXISTS', K.lease, ticket) == 1 end
for ticket in pairs(bundled) do
  expect(redis.call('HEXISTS', K.lease, ticket) == 0, SUFFIX.lease, 'ticket %s is in a bundle, too', ticket)
  expect(waiting[ticket] == nil, SUFFIX.bundle, 'ticket %s also waits', ticket)
end

-- Other leases, the delayed, the dead.
expect_same('leases', 'lease')
expect_same('leases', 'body')
expect_same('delayed', 'later')
expect_same('dead', 'corpse')
each_member('leases', function(ticket, deadline)
  expect(tonumber(ticket) <= S.head, SUFFIX.leases, 'ticket %s never left the line', ticket)
  expect(not returned[ticket] or holes[ticket], SUFFIX.leases, 'ticket %s also waits', ticket)
  expect_swept(SUFFIX.leases, deadline, 'ticket %s lapsed', ticket)
end)
each_member('delayed', function(seq, due)
  expect(tonumber(seq) <= S.seq, SUFFIX.delayed, '%s is beyond the last sequence number', seq)
  expect_swept(SUFFIX.delayed, due, '%s was due', seq)
end)
each_member('dead', function(ref, number)
  expect(number <= S.died, SUFFIX.dead, '%s is beyond the last number', ref)
  expect(not waiting[ref] and not is_leased(ref), SUFFIX.dead, 'ticket %s lives, too', ref)
end)
each_member('expiry', function(ref, at)
  local is_known = waiting[ref] ~= nil or not is_quiet
  if string.byte(ref) == 100 then
    is_known = redis.call('ZSCORE', K.delayed, string.sub(ref, 2))
  elseif tonumber(ref) <= S.head and not is_leased(ref) then
    is_known = true   -- a foreign client took it; forgotten when its time comes
  end
  expect(is_known, SUFFIX.expiry, '%s is nothing that can expire', ref)
  expect_swept(SUFFIX.expiry, at, '%s expired', ref)
end)
expect(S.expiring == 1 or redis.call('EXISTS', K.expiry) == 0, SUFFIX.meta, 'expiring is 0, but %s is not empty',
  SUFFIX.expiry)

-- Names.
local function expect_name(name, state, ref)
  if name == '' then return end
  local at = redis.call('HGET', K.ids, name)
  expect(at == state .. ref, SUFFIX.ids, 'says %s of %s, which is %s', at or 'nothing', name, state .. ref)
end
for ticket, id in pairs(waiting) do
  local at = id ~= '' and redis.call('HGET', K.ids, id)
  expect(not at or at == 'w' .. ticket, SUFFIX.ids, 'says %s of %s, which waits as ticket %s', at or '', id, ticket)
end
each_field('lease', function(ticket, packed)
  expect_name(name_of(redis.call('HGET', K.body, ticket) or '', unpack_record(packed)), 'w', ticket)
end)
each_field('later', function(seq, both)
  local record, element = unpack_both(both)
  expect_name(name_of(element, record), 'd', seq)
end)
each_field('corpse', function(ref, corpse)
  local record, element = unpack_corpse(corpse)
  expect_name(name_of(element, record), 'x', ref)
end)
local function waits_as(ticket, name)
  if waiting[ticket] == name then return true end
  local side = waiting[ticket] and redis.call('HGET', K.side, ticket)
  return side and unpack_record(side).id == name
end
each_field('ids', function(name, at)
  local state, ref = string.sub(at, 1, 1), string.sub(at, 2)
  local holds
  if state == 'f' then
    expect(redis.call('ZSCORE', K.forget, name), SUFFIX.ids, 'says that %s is finished, and %s does not have it', name,
      SUFFIX.forget)
    holds = true
  elseif state == 'w' then   -- what a foreign client took is noticed later
    holds = not is_quiet or waits_as(ref, name) or is_leased(ref) or S.scan ~= '-1'
  elseif state == 'd' then
    holds = redis.call('ZSCORE', K.delayed, ref)
  elseif state == 'x' then
    holds = redis.call('ZSCORE', K.dead, ref)
  end
  expect(holds, SUFFIX.ids, 'says %s of %s, and there is no such thing', at, name)
end)
each_member('forget', function(name)
  local at = redis.call('HGET', K.ids, name)
  expect(at and string.sub(at, 1, 1) == 'f', SUFFIX.forget, 'has %s, which is not finished', name)
end)
expect_same('acked_at', 'acked')
expect_same('attempt_at', 'attempts')

-- The lines.
each_field('blocked', function(waiter, producer)
  expect(redis.call('ZSCORE', K.producers, waiter), SUFFIX.blocked, 'has %s, which %s has not', waiter, SUFFIX.producers)
  expect(producer ~= '', SUFFIX.blocked, 'has %s without a name', waiter)
end)
expect_same('place_at', 'places')
each_member('consumers', function(waiter)
  expect(not is_kept_place(waiter) or redis.call('HEXISTS', K.places, waiter) == 1, SUFFIX.consumers,
    'has the place %s, which %s has not', waiter, SUFFIX.places)
end)
local held = {}
each_field('lease', function(ticket, packed)
  local step = owned_as(packed, ticket)
  of_step[step] = (of_step[step] or 0) + 1
end)
each_field('owners', function(step, kept)
  local count, waiter = owner_of(kept)
  expect(of_step[step] == count, SUFFIX.owners, 'says %d leases of a step of %s, of which %d are out', count, waiter,
    of_step[step] or 0)
  held[waiter] = (held[waiter] or 0) + count
end)
each_field('held', function(waiter, count)
  expect(held[waiter] == tonumber(count), SUFFIX.held, 'says %s leases of %s, who owns %d', count, waiter,
    held[waiter] or 0)
end)

-- Counts, and who comes when.
if is_quiet then
  local there = S.len + leased_count(S) + redis.call('ZCARD', K.delayed) + redis.call('ZCARD', K.dead)
  local gone = S.n_acked + S.n_expired + S.n_withdrawn + S.n_foreign
  expect(S.n_accepted == there + gone, SUFFIX.meta, '%s messages were accepted, %s are there and %s ended',
    text_of(S.n_accepted), text_of(there), text_of(gone))
end
local due = next_due(S)
expect(due == 0 or (S.due_said > 0 and S.due_said <= due), SUFFIX.meta, 'nobody was told of the next due time')
local before = 0
for _, entry in ipairs(redis.call('LRANGE', K.times, 0, -1)) do
  local ticket = tonumber(string.match(entry, '^(%d+):%d+$'))
  expect(ticket and ticket > before, SUFFIX.times, 'is not in ticket order at %s', string.sub(entry, 1, 40))
  before = ticket or before
end
if oldest_waiting < S.now then
  find(SUFFIX.producer_free, 'foreign clients hold both roles, and what was due %d s ago waits: has one of them died?',
    (S.now - oldest_waiting) / 1000)
end
return reply_with(T.OK)
