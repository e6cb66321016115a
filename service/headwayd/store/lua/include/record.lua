-- What is known of one message beyond its element, packed: used in x:lease, x:side, x:later and x:corpse.
--   failures   u32   deliveries that failed
--   put_at     u64   ms; 0 = nobody knows
--   expires_at u64   ms; 0 = never. While the message waits or is delayed, x:expiry says it
--   flags      u8    see below
--   replays    u32   how often it came back from the dead
--   nonce      20    of the last lease: 16 random bytes and its attempt (u32); zero bytes if there was none
--   id         u16 length + bytes: a made id that must outlive its ticket; empty for all others
--   holder     if HELD, in x:lease alone: u64 ms since when, u8 length + bytes: the consumer's name
--   error      rest  the reason of the last failure
local FLAG = {
  COUNTED = 1,   -- its first departure was counted in pressure's consumed stats
  LAPSED = 2,    -- the last lease ran out and was not settled: a late ack is still good
  CLAIMED = 8,   -- the attempt that leased it was asked again: it stays until all who asked have gone (attempts)
  RELEASED = 4,  -- an earlier lease of its ticket ended at no attempt's cost
  HELD = 16,     -- it tells by whom: only while it is leased
  RETAKEN = 32,  -- the last lease lapsed, and its holder took it up again
  BACK = 64,     -- its lease has ended, and it goes back to the head as soon as it is sure what stands there
  NAMED = 128,   -- when it was first leased it, or another that was leased together with it, had an id in its frame
}
local NO_NONCE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local function has_flag(flags, flag) return math.floor(flags / flag) % 2 == 1 end
local function with_flag(flags, flag) if has_flag(flags, flag) then return flags end return flags + flag end
local function without_flag(flags, flag) if has_flag(flags, flag) then return flags - flag end return flags end

local function new_record(put_at)
  return { failures = 0, put_at = put_at, expires_at = 0, flags = 0, replays = 0, nonce = NO_NONCE, id = '', error = '' }
end

local RECORD = '>I4I8I8BI4c20I2'
local function pack_record(r)
  return struct.pack(RECORD, r.failures, r.put_at, r.expires_at, r.flags, r.replays, r.nonce, #r.id) .. r.id .. r.error
end

-- Who leases from now on.
local function pack_holder(now, consumer) return struct.pack('>I8B', now, #consumer) .. consumer end

-- The record of a leased message.
local function pack_leased(r, holder)
  if not holder then return pack_record(r) end
  local flags = with_flag(r.flags, FLAG.HELD)
  return struct.pack(RECORD, r.failures, r.put_at, r.expires_at, flags, r.replays, r.nonce, #r.id) .. r.id .. holder
    .. r.error
end

-- Of a message that is leased for the first time nothing is known but when it was put, and its lease. So its record is
-- put together from three parts: the first is the same for all that were put at the same time, the last for all that
-- are leased together; between them stands the random part of the nonce.
local FRESH_FLAGS = FLAG.COUNTED + FLAG.HELD
local FRESH_BYTES, FLAGS_AT, NAME_SIZE_AT, NONCE_AT, NONCE_TO = 56, 21, 56, 26, 45
local function fresh_part(put_at, is_named)
  return struct.pack('>I4I8I8BI4', 0, put_at, 0, is_named and FRESH_FLAGS + FLAG.NAMED or FRESH_FLAGS, 0)
end
local function fresh_rest(holder) return '\0\0\0\1\0\0' .. holder end
local function is_fresh(bytes)
  return string.byte(bytes, FLAGS_AT) == FRESH_FLAGS and string.sub(bytes, 1, 4) == '\0\0\0\0'
    and string.sub(bytes, 46, 47) == '\0\0' and #bytes == FRESH_BYTES + string.byte(bytes, NAME_SIZE_AT)
end
local function nonce_of(bytes) return string.sub(bytes, NONCE_AT, NONCE_TO) end
-- What the leases of one step of one waiter have in common: the random part of their nonces.
local STEP_TO = 41
local function step_of(bytes) return string.sub(bytes, NONCE_AT, STEP_TO) end

-- Whether a lease was given to that step, and did not lapse since. O(1).
local function is_of_step(bytes, random)
  return step_of(bytes) == random and not has_flag(string.byte(bytes, FLAGS_AT), FLAG.RETAKEN)
end

-- By what x:owners knows whose a lease is: by its step; one that lapsed, and was taken up again, by its ticket besides,
-- for it may be somebody else's than the others of its step. O(1).
local function owned_as(bytes, ticket)
  if has_flag(string.byte(bytes, FLAGS_AT), FLAG.RETAKEN) then return step_of(bytes) .. ticket end
  return step_of(bytes)
end

local function unpack_record(bytes)
  local failures, put_at, expires_at, flags, replays, nonce, id_length, id_at = struct.unpack(RECORD, bytes)
  local holder, error_at = nil, id_at + id_length
  if has_flag(flags, FLAG.HELD) then
    local holder_at = error_at
    error_at = holder_at + 9 + string.byte(bytes, holder_at + 8)
    holder, flags = string.sub(bytes, holder_at, error_at - 1), flags - FLAG.HELD
  end
  return { failures = failures, put_at = put_at, expires_at = expires_at, flags = flags, replays = replays,
           nonce = nonce, id = string.sub(bytes, id_at, id_at + id_length - 1),
           holder = holder, error = string.sub(bytes, error_at) }
end

-- A record and an element in one value: u32 length of the record, the record, the element.
local function pack_both(record, element)
  local packed = pack_record(record)
  return struct.pack('>I4', #packed) .. packed .. element
end

local function unpack_both(bytes)
  local length = struct.unpack('>I4', bytes)
  return unpack_record(string.sub(bytes, 5, 4 + length)), string.sub(bytes, 5 + length)
end

-- What x:corpse keeps of a dead message: died_at (u64 ms), cause (one letter), then record and element.
local CAUSE = { ATTEMPTS = 'a', EXPIRED = 'x' }
local function pack_corpse(died_at, cause, record, element)
  return struct.pack('>I8', died_at) .. cause .. pack_both(record, element)
end
local function unpack_corpse(bytes)
  local record, element = unpack_both(string.sub(bytes, 10))
  return record, element, string.sub(bytes, 9, 9), (struct.unpack('>I8', bytes))
end
