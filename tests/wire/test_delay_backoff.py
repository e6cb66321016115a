"""Delay with no time said: the queue's backoff."""

from __future__ import annotations

from headway.v1 import queue_pb2
from wire.calls import DELAYED, RELEASED, Keys, Line, fail_next, leases, now_ms, payloads, span


async def test_with_no_time_said_the_waits_grow_by_the_multiplier_up_to_the_longest(line: Line, keys: Keys) -> None:
    retry = queue_pb2.Retry(min_backoff=span(60), max_backoff=span(300), multiplier=2)
    await line.create(retry=retry)
    await line.put(b"one")
    for attempt, expected in enumerate((60, 120, 240, 300, 300), 1):
        before = now_ms(keys.client)
        result = await fail_next(line)
        after = now_ms(keys.client)
        assert (result.settled, result.attempts) == (DELAYED, attempt)
        waited = result.available_at.ToMilliseconds() - expected
        assert before - 1 <= waited - 0 <= after + 1


async def test_the_default_backoff_is_1_2_4_seconds(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    # Two failures that do not wait: the third waits min_backoff · 2².
    await fail_next(line, delay_ms=0)
    await fail_next(line, delay_ms=0)
    before = now_ms(keys.client)
    result = await fail_next(line)
    after = now_ms(keys.client)
    assert before - 1 <= result.available_at.ToMilliseconds() - 4_000 <= after


async def test_jitter_spreads_the_waits_within_its_share_and_never_above_the_longest(line: Line, keys: Keys) -> None:
    retry = queue_pb2.Retry(min_backoff=span(1_000_000), max_backoff=span(1_200_000), multiplier=1, jitter=0.5)
    await line.create(retry=retry)
    await line.put(*(b"x" for _ in range(60)))
    before = now_ms(keys.client)
    results = await line.delay(*leases(await line.take(60)))
    after = now_ms(keys.client)
    waits = [result.available_at.ToMilliseconds() for result in results]
    assert all(before + 499_000 <= wait <= after + 1_200_001 for wait in waits)
    assert len(set(waits)) > 20


async def test_without_a_shortest_backoff_a_failed_message_is_back_at_once(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(0), max_backoff=span(0)))
    await line.put(b"one", b"two")
    assert (await fail_next(line)).settled in {RELEASED, DELAYED}
    assert sorted(payloads(await line.take(2, wait_ms=1_000))) == [b"one", b"two"]
