-- @include lists reach
-- The order in which messages that came back stand at the head: in blocks, the one begun last first, and in a block by
-- ticket. There is but one until a message comes back before whose place more than MOST_MOVED stand. An element cannot
-- be put into the middle of a list without moving those on one side of it, so that message begins a new block before all,
-- and no step moves more.
--
-- x:returned is sorted by `order`: the ticket, less BLOCK for each block behind its own. A queue that has more than one
-- block has layout 2.
local BLOCK = 8796093022208   -- 2^43: of tickets from there on no block begins
local MOST_BLOCKS = 1000      -- so that `order` has no more than the 53 bits of an exact number
local ONE_BLOCK, BLOCKS = 1, 2   -- layouts

-- Where a message that comes back stands: how many elements before its place have to be moved for it, and its block.
-- O(log n).
local function place_at_head(S, ticket)
  if S.returned == 0 then return 0, 0 end
  local block = 0
  if S.layout == BLOCKS and ticket < BLOCK then
    local lowest = tonumber(redis.call('ZRANGE', K.returned, 0, 0, 'WITHSCORES')[2])
    block = math.max(0, math.ceil(-lowest / BLOCK))
  end
  local before = redis.call('ZCOUNT', K.returned, '-inf', '(' .. text_of(ticket - block * BLOCK))
  if before > MOST_MOVED and ticket < BLOCK and block < MOST_BLOCKS then return 0, block + 1 end
  return before, block
end

-- What a ticket of x:returned is sorted by, as text.
local function order_of(S, ticket)
  if S.layout ~= BLOCKS then return ticket end
  return redis.call('ZSCORE', K.returned, ticket)
end
