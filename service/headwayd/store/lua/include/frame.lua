-- @include keys
-- The element of a message that is more than a payload. A payload alone is stored as it is, unless it begins with the
-- magic: then it is framed, too, so that no payload is ever taken for a frame. docs/storage.md tells others how to read
-- it.
--   magic        4   F5 48 57 01 (version 1; F5 is never the first byte of UTF-8 text)
--   put_at       u64 ms
--   id length    u16
--   headers len  u32
--   total length u32 of the whole frame
--   check        u16 sum of i * byte i over the 22 bytes before, modulo 65521
--   id, headers (encoded, opaque), payload
local MAGIC = '\245HW\1'
local MAGIC_BYTE = 245   -- its first: whatever begins with another is no frame
local FRAME_HEADER = 24

local MAGIC_SUM = 654   -- of the four bytes of the magic
-- Written out: each message is checked several times, and a loop took as long as all the rest of its step.
local function frame_check(header)
  local b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15, b16, b17, b18,
    b19, b20, b21, b22 = string.byte(header, 5, 22)
  return (MAGIC_SUM + 5 * b5 + 6 * b6 + 7 * b7 + 8 * b8 + 9 * b9 + 10 * b10
    + 11 * b11 + 12 * b12 + 13 * b13 + 14 * b14 + 15 * b15 + 16 * b16
    + 17 * b17 + 18 * b18 + 19 * b19 + 20 * b20 + 21 * b21 + 22 * b22) % 65521
end

-- What a frame begins with. Of those that are put together, and are alike in size, it is the same: it is made, and
-- checked, once for all that follow each other.
local made_begin, made_put_at, made_id_size, made_headers_size, made_total
local function begin_of_frame(put_at, id_size, headers_size, total)
  if total ~= made_total or id_size ~= made_id_size or headers_size ~= made_headers_size or put_at ~= made_put_at then
    local header = MAGIC .. struct.pack('>I8I2I4I4', put_at, id_size, headers_size, total)
    made_begin = header .. struct.pack('>I2', frame_check(header))
    made_put_at, made_id_size, made_headers_size, made_total = put_at, id_size, headers_size, total
  end
  return made_begin
end

local function make_element(id, headers, payload, put_at)
  if #id == 0 and #headers == 0 and string.sub(payload, 1, 4) ~= MAGIC then return payload end
  local total = FRAME_HEADER + #id + #headers + #payload
  return begin_of_frame(put_at, #id, #headers, total) .. id .. headers .. payload
end

-- id and put_at of a frame; nil if the element is a bare payload. Who has read one often reads it again at once.
local last_frame, last_id, last_put_at
local last_begin, begin_put_at, begin_id_to, begin_total
local function read_frame(element)
  if element == last_frame then return last_id, last_put_at end
  if string.byte(element) ~= MAGIC_BYTE then return nil end
  local begin = string.sub(element, 1, FRAME_HEADER)
  if begin ~= last_begin then
    if string.sub(begin, 1, 4) ~= MAGIC or #begin < FRAME_HEADER then return nil end
    local put_at, id_length, headers_length, total, check = struct.unpack('>I8I2I4I4I2', begin, 5)
    if FRAME_HEADER + id_length + headers_length > total or check ~= frame_check(begin) then return nil end
    last_begin, begin_put_at, begin_id_to, begin_total = begin, put_at, FRAME_HEADER + id_length, total
  end
  if begin_total ~= #element then return nil end
  last_frame, last_id, last_put_at = element, string.sub(element, FRAME_HEADER + 1, begin_id_to), begin_put_at
  return last_id, last_put_at
end

-- Encoded headers but traceparent and tracestate. Each is protobuf's entry of a map: 0x1A, a length of one or two bytes,
-- then the key with its tag and length before it. What is encoded otherwise is given back whole.
local function without_trace(headers)
  if not string.find(headers, 'trace', 1, true) then return headers end
  local kept, at = {}, 1
  while at <= #headers do
    local tag, length, high = string.byte(headers, at, at + 2)
    local from = at + 2
    if tag ~= 26 or not length or (length >= 128 and (not high or high >= 128)) then return headers end
    if length >= 128 then length, from = length - 128 + 128 * high, from + 1 end
    local key = string.sub(headers, from, from + 12)
    if key ~= '\10\11traceparent' and string.sub(key, 1, 12) ~= '\10\10tracestate' then
      kept[#kept + 1] = string.sub(headers, at, from + length - 1)
    end
    at = from + length
  end
  return table.concat(kept)
end

-- Headers and payload of an element, told apart from each other; without what tells of the put alone.
local function body_of(element)
  if not read_frame(element) then return '\0\0\0\0' .. element end
  local _, id_length, headers_length = struct.unpack('>I8I2I4', element, 5)
  local payload_at = FRAME_HEADER + id_length + headers_length + 1
  if headers_length == 0 then return '\0\0\0\0' .. string.sub(element, payload_at) end
  local headers = without_trace(string.sub(element, FRAME_HEADER + id_length + 1, payload_at - 1))
  return struct.pack('>I4', #headers) .. headers .. string.sub(element, payload_at)
end
