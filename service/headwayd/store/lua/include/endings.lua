-- @include queue
-- How messages ended, and the bits that most endings are kept as.
--
-- x:acked tells how messages ended, and which leases have no say any more, for `remember_ms`: one bit per ticket, in
-- pages of 4096, for those acked by their only lease without a result (field 'p<page>') and those withdrawn or expired
-- without ever having been leased ('w<page>', 'x<page>'); for all others field 'n<ref>': a mark, the last lease's nonce,
-- the result.
local MARK = {
  DONE = 'a',       -- acked
  BACK = 'r',       -- the lease was given back and the message has another reference now
  REPLACED = 'p',   -- another message took over
  WITHDRAWN = 'w',
  EXPIRED = 'x',
  TAKEN = 'u',      -- by a foreign client
  MOVED = 'm',      -- redriven to another queue, from which it may come back
}
local PAGE = 4096
local PAGE_BYTES = PAGE / 8
local REMEMBER_TOUCH_MS = 1000

local function touch_remembered(S, field)
  local written = tonumber(redis.call('ZSCORE', K.acked_at, field) or 0)
  if S.now - written < REMEMBER_TOUCH_MS then return end
  redis.call('ZADD', K.acked_at, S.now, field)
  tidy_by(S, S.now + policy_of(S, 'remember_ms') + REMEMBER_TOUCH_MS)
end

-- Bits, one per ticket, for the endings that need no more than that. A page is kept as it was read, with the bytes that
-- this call has changed beside it; commit puts both together. To cut a page in pieces for every bit costs as much as all
-- the rest of an ack.
local function page_prefixes() return { [MARK.DONE] = 'p', [MARK.WITHDRAWN] = 'w', [MARK.EXPIRED] = 'x' } end

local function has_pages(mark) return mark == MARK.DONE or mark == MARK.WITHDRAWN or mark == MARK.EXPIRED end

-- The pages of a mark that this call has looked at, and which it looked at last.
local function bits_of(S, mark)
  S.bits = S.bits or {}
  S.bits[mark] = S.bits[mark] or { prefix = page_prefixes()[mark], pages = {} }
  return S.bits[mark]
end

-- The page that has the bit of a ticket, a number.
local function page_of(bits, ticket)
  local number = math.floor(ticket / PAGE)
  local page = bits.pages[number]
  if not page then
    local field = bits.prefix .. text_of(number)
    local was = redis.call('HGET', K.acked, field) or string.rep('\0', PAGE_BYTES)
    page = { field = field, was = was, bytes = {}, from = number * PAGE, to = number * PAGE + PAGE - 1 }
    bits.pages[number] = page
  end
  bits.last = page
  return page
end

local function has_bit(S, mark, ticket)
  ticket = tonumber(ticket)
  local page = page_of(bits_of(S, mark), ticket)
  local at = ticket - page.from
  local byte_at = math.floor(at / 8) + 1
  return math.floor((page.bytes[byte_at] or string.byte(page.was, byte_at)) / 2 ^ (at % 8)) % 2 == 1
end

-- A text with some of its bytes changed. O(bytes changed, in order).
local function with_bytes(was, bytes)
  local places = {}
  for at in pairs(bytes) do places[#places + 1] = at end
  table.sort(places)
  local parts, from = {}, 1
  for _, at in ipairs(places) do
    if at > from then parts[#parts + 1] = string.sub(was, from, at - 1) end
    parts[#parts + 1] = string.char(bytes[at])
    from = at + 1
  end
  parts[#parts + 1] = string.sub(was, from)
  return table.concat(parts)
end

local function write_page(S, page)
  if next(page.bytes) == nil then return end
  redis.call('HSET', K.acked, page.field, with_bytes(page.was, page.bytes))
  touch_remembered(S, page.field)
end

local function write_pages(S)
  for _, bits in pairs(S.bits) do
    for _, page in pairs(bits.pages) do write_page(S, page) end
  end
end

-- The same page, which is to be written back.
local function page_to_change(S, bits, ticket)
  S.at_commit = write_pages
  local page = bits.last
  if page and ticket >= page.from and ticket <= page.to then return page end
  return page_of(bits, ticket)
end

local function set_bit(S, bits, ticket)
  ticket = tonumber(ticket)
  local page = page_to_change(S, bits, ticket)
  local at = ticket - page.from
  local place = at % 8
  local byte_at, value = (at - place) / 8 + 1, 2 ^ place
  local byte = page.bytes[byte_at] or string.byte(page.was, byte_at)
  if byte % (2 * value) >= value then return end
  page.bytes[byte_at] = byte + value
end

-- The same for all tickets from one to another.
local function set_bits(S, bits, first, last)
  local ticket = first
  while ticket <= last do
    if ticket % 8 == 0 and ticket + 7 <= last then
      local page = page_to_change(S, bits, ticket)
      page.bytes[(ticket - page.from) / 8 + 1] = 255
      ticket = ticket + 8
    else
      set_bit(S, bits, ticket)
      ticket = ticket + 1
    end
  end
end
