"""Delay: gives leased messages back, now, later, or by the queue's backoff."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import (
    DEAD,
    DELAYED,
    GONE,
    INVALID_ARGUMENT,
    RELEASED,
    SLACK_S,
    STALE,
    UNIMPLEMENTED,
    Delivery,
    Keys,
    Line,
    instant,
    leases,
    now_ms,
    payloads,
    span,
)

MAX_BATCH = 1_000
DAY_MS = 24 * 3_600 * 1_000


async def fail(line: Line, **how: object) -> message_pb2.SettleResult:
    """Takes the next message and gives it back."""
    [result] = await line.delay((await line.take_one(wait_ms=10_000)).lease, **how)  # type: ignore[arg-type]
    return result


async def redelivered(line: Line) -> Delivery:
    return await line.take_one(wait_ms=10_000)


# Now.


async def test_now_is_the_head_in_ticket_order(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(6)))
    taken = await line.take(4)
    for at in (2, 0, 3, 1):
        [result] = await line.delay(taken[at].lease, delay_ms=0)
        assert (result.settled, result.attempts, result.lease) == (RELEASED, 1, taken[at].lease)
        assert not result.HasField("available_at")
    deliveries = await line.take(6)
    assert payloads(deliveries) == [b"%d" % number for number in range(6)]
    assert [delivery.attempt for delivery in deliveries] == [2, 2, 2, 2, 1, 1]
    assert [delivery.ticket for delivery in deliveries] == [1, 2, 3, 4, 5, 6]


async def test_a_batch_given_back_stands_in_ticket_order_whatever_the_order_of_the_leases(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(5)))
    taken = await line.take(4)
    order = [3, 1, 0, 2]
    results = await line.delay(*(taken[at].lease for at in order), delay_ms=0)
    assert [result.lease for result in results] == [taken[at].lease for at in order]
    assert payloads(await line.take(5)) == [b"%d" % number for number in range(5)]


async def test_messages_that_come_back_at_different_times_are_merged_in_ticket_order(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(8)))
    first, second = await line.take(3), await line.take(3)
    await line.delay(*leases([second[1], first[2]]), delay_ms=0)
    await line.delay(*leases([first[0], second[2], second[0]]), delay_ms=0)
    await line.delay(first[1].lease, delay_ms=0)
    assert (await line.counts()).returned == 6
    assert payloads(await line.take(8)) == [b"%d" % number for number in range(8)]


async def test_a_message_given_back_wakes_who_waits(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    taken = await line.take_one()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumer_waits(line))
    await line.delay(taken.lease, delay_ms=0)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"one"]


async def consumer_waits(line: Line) -> bool:
    return (await line.describe()).counts.consumers_waiting == 1


@pytest.mark.parametrize("until_ms", [0, 1_000, -5_000])
async def test_until_a_time_that_is_past_is_now_at_the_head(line: Line, until_ms: int) -> None:
    await line.create()
    await line.put(b"one", b"two")
    assert (await fail(line, until_ms=until_ms)).settled == RELEASED
    assert payloads(await line.take(2)) == [b"one", b"two"]


# Later.


async def test_later_is_the_tail_when_it_is_due(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one", b"two")
    before = now_ms(keys.client)
    result = await fail(line, delay_ms=300)
    after = now_ms(keys.client)
    assert (result.settled, result.attempts) == (DELAYED, 1)
    assert before - 1 <= result.available_at.ToMilliseconds() - 300 <= after
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (1, 1)
    await line.put(b"three")
    await eventually(lambda: keys.length == 3)
    assert now_ms(keys.client) >= result.available_at.ToMilliseconds()
    deliveries = await line.take(3)
    assert [(one.message.payload, one.attempt) for one in deliveries] == [(b"two", 1), (b"three", 1), (b"one", 2)]


async def test_until_a_time_is_that_time(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    at = int(now_ms(keys.client)) + 300
    result = await fail(line, until_ms=at)
    assert (result.settled, result.available_at.ToMilliseconds()) == (DELAYED, at)
    delivery = await redelivered(line)
    assert now_ms(keys.client) >= at
    assert delivery.attempt == 2


async def test_messages_fall_due_in_due_order_and_ties_keep_their_order(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(5)))
    taken = await line.take(5)
    at = int(now_ms(keys.client)) + 400
    await line.delay(taken[3].lease, until_ms=at + 100)
    await line.delay(taken[1].lease, taken[0].lease, taken[4].lease, until_ms=at)
    await line.delay(taken[2].lease, delay_ms=50)
    await eventually(lambda: keys.length == 5)
    assert payloads(await line.take(5)) == [b"2", b"1", b"0", b"4", b"3"]


async def test_a_delayed_message_keeps_its_id_through_all_its_lives(line: Line) -> None:
    await line.create()
    [put] = (await line.put(b"one")).results
    for attempt in (1, 2, 3):
        delivery = await redelivered(line)
        assert (delivery.message.id, delivery.attempt) == (put.id, attempt)
        await line.delay(delivery.lease, delay_ms=50)
    delivery = await redelivered(line)
    await line.delay(delivery.lease, delay_ms=0)
    assert (await redelivered(line)).message.id == put.id


async def test_put_at_and_waited_count_from_the_first_put(line: Line) -> None:
    await line.create()
    await line.put(message_pb2.Message(id="one", payload=b"x"))
    first = await line.take_one()
    await line.delay(first.lease, delay_ms=300)
    second = await redelivered(line)
    assert second.put_at == first.put_at
    assert second.waited.ToMilliseconds() >= 300


# Backoff.


async def test_with_no_time_said_the_waits_grow_by_the_multiplier_up_to_the_longest(line: Line, keys: Keys) -> None:
    retry = queue_pb2.Retry(min_backoff=span(60), max_backoff=span(300), multiplier=2)
    await line.create(retry=retry)
    await line.put(b"one")
    for attempt, expected in enumerate((60, 120, 240, 300, 300), 1):
        before = now_ms(keys.client)
        result = await fail(line)
        after = now_ms(keys.client)
        assert (result.settled, result.attempts) == (DELAYED, attempt)
        waited = result.available_at.ToMilliseconds() - expected
        assert before - 1 <= waited - 0 <= after + 1


async def test_the_default_backoff_is_1_2_4_seconds(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    # Two failures that do not wait: the third waits min_backoff · 2².
    await fail(line, delay_ms=0)
    await fail(line, delay_ms=0)
    before = now_ms(keys.client)
    result = await fail(line)
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
    assert (await fail(line)).settled in {RELEASED, DELAYED}
    assert sorted(payloads(await line.take(2, wait_ms=1_000))) == [b"one", b"two"]


# Attempts.


@pytest.mark.parametrize("how", ["now", "later", "backoff"])
async def test_a_message_that_used_up_its_attempts_is_dead(line: Line, how: str) -> None:
    times = {"now": {"delay_ms": 0}, "later": {"delay_ms": 20}, "backoff": {}}[how]
    await line.create(retry=queue_pb2.Retry(max_attempts=3, min_backoff=span(20)))
    await line.put(b"one")
    for _ in range(2):
        assert (await fail(line, **times)).settled == (RELEASED if how == "now" else DELAYED)
    result = await fail(line, **times, reason="no luck")
    assert (result.settled, result.attempts) == (DEAD, 3)
    assert not result.HasField("available_at")
    counts = await line.counts()
    assert (counts.dead, counts.length, counts.delayed, counts.leased) == (1, 0, 0, 0)
    assert (await line.get(wait_ms=100)).deliveries == []


async def test_keep_attempt_spends_none(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=2))
    await line.put(b"one")
    for _ in range(4):
        delivery = await line.take_one()
        assert delivery.attempt == 1
        [result] = await line.delay(delivery.lease, delay_ms=0, keep_attempt=True)
        assert (result.settled, result.attempts) == (RELEASED, 0)
    [result] = await line.delay((await line.take_one()).lease, delay_ms=20, keep_attempt=True)
    assert (result.settled, result.attempts) == (DELAYED, 0)
    assert (await redelivered(line)).attempt == 1


async def test_the_reason_is_kept_for_whoever_looks(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    await fail(line, delay_ms=0, reason="disk full: größe \U0001f422")
    [seen] = await line.peek()
    assert (seen.failures, seen.last_error) == (1, "disk full: größe \U0001f422")
    await fail(line, delay_ms=0)
    [seen] = await line.peek()
    assert seen.failures == 2


# Leases that lapse.


async def test_a_lapsed_lease_returns_its_message_to_the_head_though_nobody_touches_the_queue(
    line: Line, keys: Keys
) -> None:
    await line.create()
    await line.put(b"one", b"two")
    await line.take_one(lease_ms=150)
    await eventually(lambda: keys.length == 2, within=5)
    deliveries = await line.take(2)
    assert [(one.message.payload, one.attempt, one.ticket) for one in deliveries] == [(b"one", 2, 1), (b"two", 1, 2)]


async def test_a_waiting_get_is_given_the_message_of_a_lapsed_lease(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    first = await line.take_one(lease_ms=200)
    second = await line.take_one(wait_ms=10_000)
    assert (second.message.payload, second.attempt) == (b"one", 2)
    late = second.lease_expires_at.ToMilliseconds() - 30_000 - first.lease_expires_at.ToMilliseconds()
    assert 0 <= late < 2_000


async def test_lapsed_leases_spend_attempts_until_the_message_is_dead(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=2))
    await line.put(b"one")
    for attempt in (1, 2):
        assert (await line.take_one(wait_ms=5_000, lease_ms=100)).attempt == attempt
    await eventually(lambda: is_dead(line))
    counts = await line.counts()
    assert (counts.length, counts.leased) == (0, 0)


async def is_dead(line: Line) -> bool:
    return (await line.describe()).counts.dead == 1


async def test_a_lapsed_lease_whose_message_nobody_took_can_still_give_it_back_later(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    delivery = await line.take_one(lease_ms=100)
    await eventually(lambda: keys.length == 1)
    [result] = await line.delay(delivery.lease, delay_ms=600_000)
    assert result.settled in {DELAYED, STALE}
    counts = await line.counts()
    assert (counts.length, counts.delayed) == ((0, 1) if result.settled == DELAYED else (1, 0))


# What is no lease.


async def test_leases_that_have_no_say_are_told_so_one_by_one(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    one, two, three = await line.take(3)
    await line.ack(one.lease)
    await line.delay(two.lease, delay_ms=0)
    results = await line.delay(one.lease, two.lease, "made-up", three.lease, three.lease, delay_ms=0)
    assert [result.settled for result in results] == [GONE, STALE, GONE, RELEASED, STALE]
    assert payloads(await line.take(2)) == [b"2", b"3"]


async def test_leases_of_an_unknown_queue_are_gone_and_no_error(line: Line) -> None:
    assert [result.settled for result in await line.delay("made-up", delay_ms=0)] == [GONE]


# Fields.


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if count else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(*["x"] * count, delay_ms=0)
    assert list(said.violations) == ["leases"]


async def test_the_largest_batch_is_given_back_in_order(line: Line) -> None:
    await line.create()
    sent = [b"%d" % number for number in range(MAX_BATCH)]
    await line.put(*sent)
    tokens = leases(await line.take(MAX_BATCH))
    results = await line.delay(*reversed(tokens), delay_ms=0)
    assert {result.settled for result in results} == {RELEASED}
    assert payloads(await line.take(MAX_BATCH)) == sent


@pytest.mark.parametrize("delay_ms", [-1, -0.000001, 366 * DAY_MS + 1])
async def test_a_delay_out_of_its_range_is_refused_and_the_lease_stays(line: Line, delay_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(lease, delay_ms=delay_ms)
    assert list(said.violations) == ["delay"]
    assert (await line.counts()).leased == 1


@pytest.mark.parametrize("delay_ms", [1, 366 * DAY_MS])
async def test_a_delay_up_to_its_bounds_is_taken(line: Line, delay_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    assert (await fail(line, delay_ms=delay_ms)).settled == DELAYED


async def test_a_delay_finer_than_a_millisecond_is_rounded_up(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    assert (await fail(line, delay_ms=0.000001)).settled == DELAYED


async def test_a_time_more_than_366_days_ahead_is_refused_and_the_lease_stays(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(lease, until_ms=int(now_ms(keys.client)) + 367 * DAY_MS)
    assert list(said.violations) == ["until"]
    assert (await line.counts()).leased == 1


@pytest.mark.parametrize("size", [1_024, 1_025])
async def test_a_reason_has_at_most_1024_bytes(line: Line, size: int) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    if size > 1_024:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.delay(lease, delay_ms=0, reason="r" * size)
        assert list(said.violations) == ["reason"]
    else:
        await line.delay(lease, delay_ms=0, reason="r" * size)
        assert (await line.peek())[0].last_error == "r" * size


async def test_a_timestamp_that_is_none_is_refused(line: Line) -> None:
    await line.create()
    request = queue_service_pb2.DelayRequest(queue=line.name, leases=["x"], until=instant(0))
    request.until.nanos = -1
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Delay(request, timeout=SLACK_S)
    assert list(said.violations) == ["until"]


async def test_postponing_waiting_messages_is_not_served_yet(line: Line) -> None:
    await line.create()
    request = queue_service_pb2.DelayRequest(queue=line.name, message_ids=["one"])
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        await line.stub.Delay(request, timeout=SLACK_S)
    assert said.metadata == {"field": "message_ids"}


async def test_a_caller_that_vanishes_leaves_its_message_given_back_or_leased_never_between(line: Line) -> None:
    await line.create(lease=span(600_000))
    await line.put(*(b"x" for _ in range(30)))
    tokens = leases(await line.take(30))
    for number, token in enumerate(tokens):
        request = queue_service_pb2.DelayRequest(queue=line.name, leases=[token], delay=span(0))
        call = line.stub.Delay(request, timeout=SLACK_S)
        for _ in range(number % 6):
            await asyncio.sleep(0)
        call.cancel()
    counts = await line.counts()
    assert counts.length + counts.leased == 30
