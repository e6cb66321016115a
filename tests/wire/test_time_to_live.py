"""Time to live: an expired message is never delivered, wherever it is when its time is up, and it is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2
from wire.calls import (
    ACKED,
    DEAD,
    EXTENDED,
    GONE,
    INVALID_ARGUMENT,
    STALE,
    Keys,
    Line,
    Message,
    now_ms,
    payloads,
    span,
)
from wire.operators import all_dead, assert_sound
from wire.test_pause import pause

SOON_MS = 1_000  # a machine that stalls for less fails nobody who must come before
LONG_MS = 600_000
DAY_MS = 24 * 3_600_000


def short(payload: bytes = b"short", *, ms: float = SOON_MS, **fields: object) -> Message:
    return Message(payload=payload, time_to_live=span(ms), **fields)  # type: ignore[arg-type]


async def expired(line: Line, count: int = 1) -> queue_pb2.Counts:
    """Waits until so many have expired; the books balance at every look."""

    async def counts() -> queue_pb2.Counts | None:
        found = await line.counts()
        return found if found.expired == count else None

    found = await eventually(counts)
    assert found is not None
    return found


async def past(keys: Keys, at_ms: float) -> None:
    """Waits until the store's clock is past this instant."""
    await eventually(lambda: now_ms(keys.client) > at_ms + 20)


# Wherever it is.


@pytest.mark.parametrize("whose", ["message", "policy"])
@pytest.mark.parametrize("kind", ["bare", "named"])
async def test_a_waiting_message_expires_though_nobody_touches_the_queue(line: Line, whose: str, kind: str) -> None:
    message_id = "a" if kind == "named" else ""
    if whose == "message":
        await line.create()
        await line.put(b"before", short(id=message_id), b"behind")
    else:
        await line.create(time_to_live=span(SOON_MS))
        middle = Message(payload=b"short", id=message_id)
        await line.put(short(b"before", ms=LONG_MS), middle, short(b"behind", ms=LONG_MS))
    assert (await line.counts()).length == 3
    counts = await expired(line)
    assert (counts.length, counts.accepted, counts.dead) == (2, 3, 0)
    assert [(seen.position, seen.message.payload) for seen in await line.peek(5)] == [(1, b"before"), (2, b"behind")]
    assert payloads((await line.get(5)).deliveries) == [b"before", b"behind"]
    await assert_sound(line)


async def test_no_delivery_ever_comes_later_than_its_time(line: Line) -> None:
    await line.create()
    await line.put(*(short(b"%d" % number, ms=1 + 5 * number) for number in range(100)))
    got = 0
    while (await line.counts()).length:
        for delivery in (await line.get(3)).deliveries:
            assert delivery.waited.ToMilliseconds() < 1 + 5 * int(delivery.message.payload)
            got += 1
    counts = await line.counts()
    assert (counts.leased, counts.expired) == (got, 100 - got)
    await assert_sound(line)


async def test_a_delayed_message_expires(line: Line) -> None:
    await line.create()
    await line.put(short(delay=span(LONG_MS)), Message(payload=b"keep", delay=span(LONG_MS)))
    assert (await line.counts()).delayed == 2
    counts = await expired(line)
    assert (counts.delayed, counts.length) == (1, 0)
    await assert_sound(line)


async def test_a_message_that_would_be_due_when_it_is_over_is_never_delivered(line: Line) -> None:
    await line.create()
    await line.put(*(short(ms=100, delay=span(ms)) for ms in (99.5, 100, 101, 300)))
    await expired(line, 4)
    assert (await line.get(wait_ms=300)).deliveries == []


async def test_a_lease_that_is_out_goes_on(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(short(), short())
    first, second = await line.take(2)
    await past(keys, first.put_at.ToMilliseconds() + SOON_MS)
    assert [result.settled for result in await line.extend(first.lease)] == [EXTENDED]
    counts = await line.counts()
    assert (counts.leased, counts.expired) == (2, 0)
    assert await line.ack(first.lease, second.lease) == [ACKED, ACKED]
    counts = await line.counts()
    assert (counts.acked, counts.expired) == (2, 0)
    await assert_sound(line)


async def test_a_message_that_comes_back_by_a_lapse_after_its_time_expires(line: Line) -> None:
    await line.create()
    await line.put(short())
    taken = await line.take_one(lease_ms=SOON_MS + 100)
    counts = await expired(line)
    assert (counts.leased, counts.length) == (0, 0)
    assert await line.ack(taken.lease) == [GONE]
    assert (await line.get(wait_ms=200)).deliveries == []
    await assert_sound(line)


async def test_a_message_that_came_back_in_time_expires_while_it_waits_again(line: Line) -> None:
    await line.create()
    await line.put(short(ms=2 * SOON_MS), b"behind")
    await line.delay((await line.take_one()).lease, delay_ms=0)
    counts = await line.counts()
    assert (counts.returned, counts.length) == (1, 2)
    counts = await expired(line)
    assert (counts.returned, counts.length) == (0, 1)
    assert payloads((await line.get(5)).deliveries) == [b"behind"]
    await assert_sound(line)


@pytest.mark.parametrize("delay_ms", [0, 100, None])
async def test_a_message_given_back_after_its_time_expires(line: Line, keys: Keys, delay_ms: float | None) -> None:
    await line.create()
    await line.put(short())
    taken = await line.take_one()
    await past(keys, taken.put_at.ToMilliseconds() + SOON_MS)
    [result] = await line.delay(taken.lease, delay_ms=delay_ms)
    assert (result.settled, result.attempts, result.HasField("available_at")) == (GONE, 0, False)
    counts = await expired(line)
    assert (counts.leased, counts.length, counts.delayed) == (0, 0, 0)
    assert (await line.get(wait_ms=200)).deliveries == []
    await assert_sound(line)


async def test_time_does_not_begin_anew_with_a_delay(line: Line) -> None:
    await line.create()
    await line.put(short())
    await line.delay((await line.take_one()).lease, delay_ms=LONG_MS)
    counts = await expired(line)
    assert counts.delayed == 0


async def test_many_that_expire_at_once_are_each_counted_once(line: Line) -> None:
    await line.create()
    for _ in range(3):
        await line.put(*(short(ms=600) for _ in range(1_000)))
    await line.put(b"keep")
    counts = await expired(line, 3_000)
    assert (counts.length, counts.accepted) == (1, 3_001)
    assert payloads(await line.take()) == [b"keep"]
    await assert_sound(line)


# Whose time.


async def test_a_messages_own_time_is_the_one_that_counts(line: Line) -> None:
    await line.create(time_to_live=span(SOON_MS))
    await line.put(short(b"own", ms=LONG_MS), b"the queue's")
    counts = await expired(line)
    assert counts.length == 1
    assert payloads(await line.take()) == [b"own"]


async def test_a_change_of_the_queues_time_holds_for_later_puts_only(line: Line) -> None:
    await line.create()
    await line.put(b"before")
    await line.update(time_to_live=span(SOON_MS))
    await line.put(b"between")
    await line.update("time_to_live")
    await line.put(b"after")
    counts = await expired(line)
    assert counts.length == 2
    assert payloads(await line.take(2)) == [b"before", b"after"]
    assert not (await line.describe()).policy.HasField("time_to_live")


async def test_what_a_foreign_client_put_has_the_queues_time_from_when_it_was_noticed(line: Line, keys: Keys) -> None:
    await line.create(time_to_live=span(SOON_MS))
    pipeline = keys.client.pipeline()
    pipeline.lpush(keys[""], b"foreign")
    pipeline.incr(keys["stats:produced_messages"])
    pipeline.incrby(keys["stats:produced_bytes"], 7)
    pipeline.execute()
    await line.put(short(b"ours", ms=LONG_MS))  # notices it
    counts = await expired(line)
    assert (counts.length, counts.accepted) == (1, 2)
    assert payloads(await line.take()) == [b"ours"]
    await assert_sound(line)


@pytest.mark.parametrize("ms", [0, 0.5, -1, 366 * DAY_MS + 0.001])
async def test_a_time_out_of_its_range_is_refused(line: Line, ms: float) -> None:
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.create(time_to_live=span(ms))
    assert list(said.violations) == ["policy.time_to_live"]
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(b"x", short(ms=ms))
    assert list(said.violations) == ["messages[1].time_to_live"]
    assert (await line.counts()).accepted == 0


async def test_the_longest_time_is_taken_and_told(line: Line) -> None:
    await line.create(time_to_live=span(366 * DAY_MS))
    assert (await line.describe()).policy.time_to_live.ToMilliseconds() == 366 * DAY_MS
    await line.put(b"x", short(ms=366 * DAY_MS))
    assert (await line.counts()).length == 2


# What follows.


async def in_line(line: Line) -> None:
    await line.put(short(b"body", id="a", headers={"h": "1"}))


async def delayed(line: Line) -> None:
    await line.put(short(b"body", id="a", headers={"h": "1"}, delay=span(LONG_MS)))


async def lapsed(line: Line) -> None:
    await in_line(line)
    await line.take_one(lease_ms=SOON_MS + 100)


async def returned(line: Line) -> None:
    await in_line(line)
    await line.delay((await line.take_one()).lease, delay_ms=0, reason="so", keep_attempt=True)


@pytest.mark.parametrize("state", [in_line, delayed, lapsed, returned])
async def test_an_expired_message_goes_to_the_dead_if_the_policy_says_so(
    line: Line, state: Callable[[Line], Awaitable[None]]
) -> None:
    await line.create(dead_letter_expired=True)
    await state(line)
    await eventually(lambda: is_dead(line))
    counts = await line.counts()
    assert (counts.dead, counts.expired, counts.length, counts.delayed, counts.leased) == (1, 0, 0, 0, 0)
    [dead] = await all_dead(line)
    assert (dead.message.id, dead.message.payload, dict(dead.message.headers)) == ("a", b"body", {"h": "1"})
    assert (dead.cause, dead.replays) == ("expired", 0)
    await assert_sound(line)


async def is_dead(line: Line) -> bool:
    return (await line.counts()).dead == 1


async def test_who_gives_back_a_message_after_its_time_is_told_that_it_is_dead(line: Line, keys: Keys) -> None:
    await line.create(dead_letter_expired=True)
    await line.put(short())
    taken = await line.take_one()
    await past(keys, taken.put_at.ToMilliseconds() + SOON_MS)
    assert [result.settled for result in await line.delay(taken.lease, delay_ms=0, reason="late")] == [DEAD]
    [dead] = await all_dead(line)
    assert (dead.cause, dead.last_error, dead.failures) == ("expired", "late", 1)


async def test_a_lease_that_lapsed_before_its_message_expired_is_told_that_it_is_dead(line: Line) -> None:
    await line.create(dead_letter_expired=True)
    await line.put(short(ms=2_000))
    lease = (await line.take_one(lease_ms=100)).lease
    await eventually(lambda: is_dead(line))
    [dead] = await all_dead(line)
    assert (dead.cause, dead.failures) == ("expired", 1)
    assert await line.ack(lease) == [DEAD]
    assert [result.settled for result in await line.delay(lease, delay_ms=0)] == [DEAD]
    assert [result.settled for result in await line.extend(lease)] == [STALE]


async def test_the_policy_is_looked_at_when_the_message_expires(line: Line) -> None:
    await line.create()
    await line.put(short(ms=500))
    await line.update(dead_letter_expired=True)
    await eventually(lambda: is_dead(line))
    await line.update("dead_letter_expired")
    await line.put(short(ms=50))
    counts = await expired(line)
    assert (counts.expired, counts.dead) == (1, 1)


async def test_expiry_makes_room_for_a_producer_that_waits(line: Line) -> None:
    await line.create(bound=1)
    await line.put(short(ms=500))
    [put] = (await asyncio.wait_for(line.put(b"next", wait_ms=20_000), 10)).results
    assert put.position == 1
    assert (await line.counts()).expired == 1


async def test_a_closed_queue_is_drained_when_its_last_message_has_expired(line: Line) -> None:
    await line.create()
    await line.put(short(delay=span(LONG_MS), ms=500))
    await line.close()
    with refused("QUEUE_DRAINED"):
        await asyncio.wait_for(line.get(wait_ms=20_000), 10)


async def test_a_paused_queue_expires_its_messages_all_the_same(line: Line) -> None:
    await line.create()
    await line.put(short())
    await pause(line)
    await expired(line)


async def test_the_id_of_an_expired_message_stays_known_for_the_dedupe_window(line: Line) -> None:
    await line.create(dedupe_window=span(LONG_MS))
    await line.put(short(id="a"))
    await expired(line)
    with refused("DUPLICATE_MESSAGE"):
        await line.put(Message(id="a"))
    [put] = (await line.put(Message(id="a"), on_duplicate=message_pb2.ON_DUPLICATE_REPLACE)).results
    assert put.position == 1


async def test_a_message_that_expires_frees_its_id_without_a_window(line: Line) -> None:
    await line.create(dedupe_window=span(0))
    await line.put(short(id="a"))
    await expired(line)
    assert (await line.put(Message(id="a"))).results[0].position == 1


async def test_the_time_is_not_sent_back(line: Line) -> None:
    await line.create()
    await line.put(short(ms=LONG_MS))
    [seen] = await line.peek()
    assert not seen.message.HasField("time_to_live")
    assert not (await line.take_one()).message.HasField("time_to_live")
