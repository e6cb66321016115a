"""Leases that lapse: the message comes back by itself, and an attempt is spent."""

from __future__ import annotations

from harness import eventually
from headway.v1 import queue_pb2
from wire.calls import DELAYED, STALE, Keys, Line


async def test_a_lapsed_lease_returns_its_message_to_the_head_though_nobody_touches_the_queue(
    line: Line, keys: Keys
) -> None:
    await line.create()
    await line.put(b"one", b"two")
    for _ in range(2):  # a service that has just begun looks at all queues once, but only once
        await line.take_one(lease_ms=150)
        await eventually(lambda: keys.length == 2, within=5)
    deliveries = await line.take(2)
    assert [(one.message.payload, one.attempt, one.ticket) for one in deliveries] == [(b"one", 3, 1), (b"two", 1, 2)]


async def test_leases_of_one_get_lapse_though_nobody_touches_the_queue(line: Line, keys: Keys) -> None:
    await line.create()
    for _ in range(2):  # a service that has just begun looks at all queues once, but only once
        await line.put(b"one", b"two", b"three")
        first, *rest = await line.take(3, lease_ms=150)
        await line.ack(first.lease)
        await eventually(lambda: keys.length == 2, within=5)
        deliveries = await line.take(2)
        assert [(one.message.payload, one.attempt) for one in deliveries] == [(b"two", 2), (b"three", 2)]
        assert await line.ack(*(one.lease for one in rest)) == [STALE] * 2
        await line.ack(*(one.lease for one in deliveries))


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
