"""Delay: gives leased messages back, now or later, at an attempt's cost or none."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import (
    DEAD,
    DELAYED,
    GONE,
    RELEASED,
    SLACK_S,
    STALE,
    Delivery,
    Keys,
    Line,
    fail_next,
    leases,
    now_ms,
    payloads,
    span,
)
from wire.conditions import consumers_wait


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
    await eventually(lambda: consumers_wait(line))
    await line.delay(taken.lease, delay_ms=0)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"one"]


@pytest.mark.parametrize("until_ms", [0, 1_000, -5_000])
async def test_until_a_time_that_is_past_is_now_at_the_head(line: Line, until_ms: int) -> None:
    await line.create()
    await line.put(b"one", b"two")
    assert (await fail_next(line, until_ms=until_ms)).settled == RELEASED
    assert payloads(await line.take(2)) == [b"one", b"two"]


# Later.


async def test_later_is_the_tail_when_it_is_due(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one", b"two")
    before = now_ms(keys.client)
    result = await fail_next(line, delay_ms=1_500)
    after = now_ms(keys.client)
    assert (result.settled, result.attempts) == (DELAYED, 1)
    assert before - 1 <= result.available_at.ToMilliseconds() - 1_500 <= after
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
    at = int(now_ms(keys.client)) + 1_500
    result = await fail_next(line, until_ms=at)
    assert (result.settled, result.available_at.ToMilliseconds()) == (DELAYED, at)
    delivery = await redelivered(line)
    assert now_ms(keys.client) >= at
    assert delivery.attempt == 2


async def test_messages_fall_due_in_due_order_and_ties_keep_their_order(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(5)))
    taken = await line.take(5)
    at = int(now_ms(keys.client)) + 1_500
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


# Attempts.


@pytest.mark.parametrize("how", ["now", "later", "backoff"])
async def test_a_message_that_used_up_its_attempts_is_dead(line: Line, how: str) -> None:
    times = {"now": {"delay_ms": 0}, "later": {"delay_ms": 20}, "backoff": {}}[how]
    await line.create(retry=queue_pb2.Retry(max_attempts=3, min_backoff=span(20)))
    await line.put(b"one")
    for _ in range(2):
        assert (await fail_next(line, **times)).settled == (RELEASED if how == "now" else DELAYED)
    result = await fail_next(line, **times, reason="no luck")
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
    await fail_next(line, delay_ms=0, reason="disk full: größe \U0001f422")
    [seen] = await line.peek()
    assert (seen.failures, seen.last_error) == (1, "disk full: größe \U0001f422")
    await fail_next(line, delay_ms=0)
    [seen] = await line.peek()
    assert seen.failures == 2


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


async def test_a_lease_of_an_older_queue_is_gone_also_beside_the_one_of_the_same_ticket(line: Line) -> None:
    await line.create()
    await line.put(b"old")
    old = (await line.take_one()).lease
    await line.delete()
    await line.create()
    await line.put(b"new")
    new = (await line.take_one()).lease
    assert [one.settled for one in await line.delay(new, old, new, delay_ms=0)] == [RELEASED, GONE, STALE]


async def test_leases_of_an_unknown_queue_are_gone_and_no_error(line: Line) -> None:
    assert [result.settled for result in await line.delay("made-up", delay_ms=0)] == [GONE]


# Callers that go away.


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
