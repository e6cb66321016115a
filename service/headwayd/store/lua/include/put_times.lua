-- @include keys lists
-- When bare payloads were put: x:times has at most one entry in TICK_MS, "ticket:milliseconds", for all tickets from
-- there to the next entry.
local TICK_MS = 100       -- resolution of put times of bare payloads
local TIMES_DROPPED = 20  -- most of them dropped for each that is noted

-- The last of the first `count` entries of x:times that does not begin behind the ticket, 0 if there is none.
-- So many looks as log count.
local function last_entry_for(ticket, count, entry_at)
  local low, high = 0, count
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if tonumber(string.match(entry_at(middle), '^%d+')) <= ticket then low = middle else high = middle - 1 end
  end
  return low
end
-- The same of all entries. O(log n) looks into the list, each of which passes a node of it for every few hundred
-- entries.
local function last_time_for(ticket)
  local count = redis.call('LLEN', K.times)
  return last_entry_for(ticket, count, function(i) return redis.call('LINDEX', K.times, i - 1) end)
end

-- Remembers that messages from `ticket` on were put now. Nobody may ask for those that the head has passed, because
-- their messages tell it themselves: so a few more go than come. O(1), at most one entry in TICK_MS; the clock may have
-- gone back since the last.
local function note_time(S, ticket)
  local since = S.now - S.tick_at
  if since >= 0 and since < TICK_MS then return end
  local count = redis.call('RPUSH', K.times, text_of(ticket) .. ':' .. text_of(S.now))
  set(S, 'tick_at', S.now)
  S.time_known, S.some_times, S.begins = false, false, false
  if count < 2 then return end
  local first = redis.call('LRANGE', K.times, 0, TIMES_DROPPED)
  local last = last_entry_for(S.head + 1, #first, function(i) return first[i] end)
  if last > 1 then redis.call('LTRIM', K.times, last - 1, -1) end
end

-- The first entry of x:times, and where the next begins; read once, because every message of a batch asks.
local function first_time()
  local entries = redis.call('LRANGE', K.times, 0, 1)
  if not entries[1] then return { from = math.huge, to = math.huge, at = 0 } end
  local from, at = string.match(entries[1], '^(%d+):(%d+)$')
  local to = entries[2] and string.match(entries[2], '^%d+')
  return { from = tonumber(from), to = tonumber(to) or math.huge, at = tonumber(at) }
end

-- When the message with this ticket was put, 0 if nobody knows; and the first ticket behind it of which that may not be
-- true. Entries that the head has passed are dropped: mostly one, and all at once if they are more. Tickets must be
-- asked in growing order. O(1), as last_time_for if more than one entry is passed.
local function time_of(S, ticket)
  local first = S.time_known or first_time()
  if first.to <= ticket then
    redis.call('LPOP', K.times)
    S.begins = false
    first = first_time()
    if first.to <= ticket then
      redis.call('LTRIM', K.times, last_time_for(ticket) - 1, -1)
      first = first_time()
    end
  end
  S.time_known = first
  if first.from > ticket then return 0, first.from end
  return first.at, first.to
end

-- The same for any ticket; drops nothing. Entries are read together, because most who ask ask again for a ticket near
-- by. Where those deep in the list are is found by a binary search; what it has looked at stays known for the next one of
-- the same step. Among a million (28 hours of Puts) one takes 0.05 ms, for each look passes many nodes of the list: as
-- last_time_for. Whoever asks for many in one step asks for fewer where the list is long (times_at_once).
local TIMES_AT_ONCE = 100
local function begin_of(entry) return tonumber(string.match(entry, '^%d+')) end
local function put_time(S, ticket)
  local times = S.some_times
  local function read_from(index)
    local entries = redis.call('LRANGE', K.times, index, index + TIMES_AT_ONCE)   -- the last tells where these end
    times = { entries = entries, from = index > 0 and begin_of(entries[1]) or 0,
              to = entries[TIMES_AT_ONCE + 1] and begin_of(entries[TIMES_AT_ONCE + 1]) or math.huge }
    S.some_times = times
  end
  if not times then read_from(0) end
  if ticket < times.from or ticket >= times.to then
    local first, behind, begins = 0, redis.call('LLEN', K.times), S.begins or {}
    S.begins = begins
    while behind - first > TIMES_AT_ONCE do
      local middle = math.floor((first + behind) / 2)
      begins[middle] = begins[middle] or begin_of(redis.call('LINDEX', K.times, middle))
      if begins[middle] <= ticket then first = middle else behind = middle end
    end
    read_from(first)
  end
  local entries = times.entries
  local at = last_entry_for(ticket, #entries, function(i) return entries[i] end)
  return at > 0 and tonumber(string.match(entries[at], '%d+$')) or 0
end

-- How many put times deep in the list may be asked for in one step that would ask for `most`: they cost the more the
-- longer it is.
local ALL_OF_TIMES, FEWEST_TIMES = 100000, 20   -- entries up to which all may be; asked for at least
local function times_at_once(most)
  local count = redis.call('LLEN', K.times)
  if count <= ALL_OF_TIMES then return most end
  return math.max(math.floor(most * ALL_OF_TIMES / count), FEWEST_TIMES)
end
