-- @include line
-- The numbers of a queue's line, for those who watch: a flat list; store/watch_replies.py reads it. O(1).

-- How many stand in the consumer line; how many of these take what comes at once, because nothing is held back before
-- them for a kept place; and for how many places something is. Where places are kept only the first LOOK_AT are counted.
local function consumers_of(S)
  local count = redis.call('ZCARD', K.consumers)
  if S.standing == 0 or not has_extra(S, K.place_at) then return count, count, 0 end
  local ready, awaited = 0, 0
  for _, waiter in ipairs(redis.call('ZRANGE', K.consumers, 0, LOOK_AT - 1)) do
    if not is_kept_place(waiter) then
      if awaited == 0 then ready = ready + 1 end
    elseif presence_of(S, waiter) == PRESENT then
      awaited = awaited + 1
    end
  end
  return count, ready, awaited
end

-- Tells the policy's poll_base_ms, poll_per_position_ms and poll_max_ms.
local function add_polls(S, reply)
  for _, name in ipairs({ 'poll_base_ms', 'poll_per_position_ms', 'poll_max_ms' }) do
    reply[#reply + 1] = text_of(policy_of(S, name))
  end
end

local function rate_text(S, name) return string.format('%.6f', decayed(S, name) / RATE_SPAN_MS * 1000) end

local function line_numbers(S)
  local consumers, ready, awaited = consumers_of(S)
  return {
    S.gen, text_of(S.now), text_of(S.logged), text_of(S.head), text_of(S.tail), S.len, leased_count(S),
    text_of(policy_of(S, 'limit')), text_of(S.n_departed), text_of(S.n_acked),
    consumers, redis.call('ZCARD', K.producers), S.paused, S.closed and 1 or 0,
    redis.call('ZCARD', K.delayed), rate_text(S, 'put_sum'), rate_text(S, 'ack_sum'), ready, awaited,
  }
end
