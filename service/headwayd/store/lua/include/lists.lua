-- @include keys
-- Small tools: values to and from the store, in pieces that one command can take.
local CHUNK = 1000           -- most values unpacked into one command

local function text_of(number)
  if number == math.floor(number) then return string.format('%d', number) end
  return string.format('%.6f', number)
end

local function each_chunk(values, per_chunk, act)
  if #values <= per_chunk then
    if #values > 0 then act(values) end
    return
  end
  for from = 1, #values, per_chunk do
    local part = {}
    for i = from, math.min(from + per_chunk - 1, #values) do part[#part + 1] = values[i] end
    act(part)
  end
end

local function remove_fields(key, fields)
  if #fields > 0 and #fields <= CHUNK then return redis.call('HDEL', key, unpack(fields)) end
  each_chunk(fields, CHUNK, function(part) redis.call('HDEL', key, unpack(part)) end)
end
local function remove_members(key, members)
  if #members > 0 and #members <= CHUNK then return redis.call('ZREM', key, unpack(members)) end
  each_chunk(members, CHUNK, function(part) redis.call('ZREM', key, unpack(part)) end)
end
-- Field, value, field, value … of a hash; score, member, score, member … of a sorted set; elements of a list.
local function set_fields(key, pairs_list)
  each_chunk(pairs_list, 2 * CHUNK, function(part) redis.call('HSET', key, unpack(part)) end)
end
-- Returns how many of the members are new.
local function add_members(key, pairs_list)
  local added = 0
  each_chunk(pairs_list, 2 * CHUNK, function(part) added = added + redis.call('ZADD', key, unpack(part)) end)
  return added
end
local function push_tail(elements)
  if #elements > 0 and #elements <= CHUNK then return redis.call('LPUSH', K.q, unpack(elements)) end
  each_chunk(elements, CHUNK, function(part) redis.call('LPUSH', K.q, unpack(part)) end)
end
local function push_arguments(from, to)
  for at = from, to, CHUNK do redis.call('LPUSH', K.q, unpack(ARGV, at, math.min(at + CHUNK - 1, to))) end
end
local function push_head(elements)
  each_chunk(elements, CHUNK, function(part) redis.call('RPUSH', K.q, unpack(part)) end)
end
local function push_to(key, values)
  each_chunk(values, CHUNK, function(part) redis.call('RPUSH', key, unpack(part)) end)
end
-- The values of many fields of a hash, false where there is none.
local function fields_of(key, fields)
  if #fields > 0 and #fields <= CHUNK then return redis.call('HMGET', key, unpack(fields)) end
  local values = {}
  each_chunk(fields, CHUNK, function(part)
    for _, value in ipairs(redis.call('HMGET', key, unpack(part))) do values[#values + 1] = value end
  end)
  return values
end

local function set(S, name, value)
  S[name] = value
  S.dirty[name] = true
end
local function add(S, name, amount) set(S, name, S[name] + amount) end
