-- @include keys policy
-- The fields of x:meta: what is kept of a queue's state (`queue` reads it, `commit` writes it back), and its policy.
--
-- gen (this life's name), layout (number of the layout of the queue's keys; 0 = 1), born (ms), head, tail, seen_len
-- (elements of the list), seen_prod, seen_cons (what the last script left), n_gaps, n_holes (sizes), n_bundled (leases
-- in bundles; include/bundles), seq (last sequence number of the delayed), line (last number in the producer line),
-- died (last number of the dead), tick_at (ms of the last entry of x:times), due_said (next due time told to the
-- processes), tidy_at (when there is next something to forget), scan (cursor of the search for ids that foreign
-- clients took; -1 = none goes on), scan_again (1 = they took some meanwhile), expiring (1 = x:expiry may hold
-- something), aged (tickets up to here were given the queue's time to live), adopted_at (ms since when a queue made
-- by a foreign client has been known, 0 = its making is over), offer_at (ms since when offer_to, a string, has been
-- asked to come), standing (last number in the consumer line), turn_at (the same as offer_at, for turn_to in that
-- line), paused, n_* (totals; n_departed: what ever left the line at its head), logged (events ever put into x:log),
-- watched_until (ms; events are logged so long), put_sum, put_sum_at, ack_sum, ack_sum_at (decaying sums for the
-- rates), and the policy.
--
-- Every step reads the core; the others are read together when one of them is first asked for.
--
-- The layout's number grows when what a queue's keys hold changes so that a version that does not know of it would lose
-- something or tell what is not so. Such a version leaves the queue alone.
local FIRST_LAYOUT, LAYOUT = 1, 2   -- of a new queue, and the newest that is known
local CORE = { 'gen', 'turn_to', 'layout', 'head', 'tail', 'seen_len', 'seen_prod', 'seen_cons', 'n_gaps', 'n_holes',
  'n_bundled', 'aged', 'due_said', 'tidy_at', 'expiring', 'standing', 'adopted_at', 'watched_until', 'paused',
  'n_departed', 'tick_at', 'n_accepted', 'put_sum', 'put_sum_at', 'n_acked', 'ack_sum', 'ack_sum_at' }
local FIRST_COUNTER = 3   -- all but the first two are numbers, in both
local function other_fields()
  return { 'offer_to', 'scan', 'offer_at', 'turn_at', 'seq', 'line', 'died', 'n_expired', 'n_withdrawn', 'n_foreign',
    'born', 'logged', 'scan_again' }
end

-- Fields and values that x:meta begins with. A small hash is kept as one piece that is searched from its front, and to
-- its end for a field that it has not: so what each step reads is there from the start, and stands first.
local function first_fields(generation)
  local fields = { 'gen', generation, 'turn_to', '' }
  local function counters(names)
    for i = FIRST_COUNTER, #names do
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = names[i] == 'layout' and FIRST_LAYOUT or '0'
    end
  end
  counters(CORE)
  fields[#fields + 1] = 'offer_to'
  fields[#fields + 1] = ''
  fields[#fields + 1] = 'scan'
  fields[#fields + 1] = '-1'
  counters(other_fields())
  return fields
end

-- Fails if a newer version has given the queue a layout that this one does not know.
local function refuse_newer(layout)
  if tonumber(layout or 0) > LAYOUT then error(redis.error_reply('NEWERLAYOUT')) end
end
local function refuse_unread() refuse_newer(redis.call('HGET', K.meta, 'layout')) end

local function is_other_field(name)
  for _, other in ipairs(other_fields()) do
    if name == other then return true end
  end
  return false
end

-- Reads the fields that are not of the core, but those that this step has set already.
local function read_others(S)
  local names = other_fields()
  local values = redis.call('HMGET', K.meta, unpack(names))
  local function keep(i, value)
    if rawget(S, names[i]) == nil then S[names[i]] = value end
  end
  keep(1, values[1] or '')
  keep(2, values[2] or '-1')
  for i = FIRST_COUNTER, #names do keep(i, tonumber(values[i] or 0)) end
end

-- The value of a policy's field, the default if none is kept. Each is read once in a step.
local function policy_of(S, name)
  if not S.policy then S.policy = {} end
  if S.policy[name] == nil then
    local kept = redis.call('HGET', K.meta, name)
    if not kept then
      for _, row in ipairs(policy_defaults()) do
        if row[1] == name then kept = row[2] end
      end
    end
    S.policy[name] = tonumber(kept)
  end
  return S.policy[name]
end
