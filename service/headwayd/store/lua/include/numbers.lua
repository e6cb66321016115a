-- @include line
-- The numbers of a queue's line, for those who watch: a flat list; store/watch_replies.py reads it. O(1).
local function rate_text(S, name) return string.format('%.6f', decayed(S, name) / RATE_SPAN_MS * 1000) end

local function line_numbers(S)
  return {
    S.gen, text_of(S.now), text_of(S.logged), text_of(S.head), text_of(S.tail), S.len, leased_count(S),
    text_of(policy_of(S, 'limit')), text_of(S.n_departed), text_of(S.n_acked),
    redis.call('ZCARD', K.consumers), redis.call('ZCARD', K.producers), S.paused, S.closed and 1 or 0,
    redis.call('ZCARD', K.delayed), rate_text(S, 'put_sum'), rate_text(S, 'ack_sum'),
  }
end
