"""Delay by id: postpones what waits or is delayed."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2
from wire.calls import (
    ACKED,
    DELAYED,
    GONE,
    INVALID_ARGUMENT,
    RELEASED,
    STALE,
    Keys,
    Line,
    Message,
    now_ms,
    payloads,
    span,
)
from wire.operators import ONE_ATTEMPT, assert_sound, bury

MAX_BATCH = 1_000
LONG_MS = 600_000


def named(message_id: str, payload: bytes = b"x", **fields: object) -> Message:
    return Message(id=message_id, payload=payload, **fields)  # type: ignore[arg-type]


async def postpone(
    line: Line, *ids: str, delay_ms: float | None = None, until_ms: int | None = None, **fields: object
) -> list[message_pb2.SettleResult]:
    results = await line.delay(delay_ms=delay_ms, until_ms=until_ms, message_ids=ids, **fields)
    assert [(result.id, result.lease) for result in results] == [(message_id, "") for message_id in ids]
    return results


def settled(results: list[message_pb2.SettleResult]) -> list[int]:
    return [result.settled for result in results]


async def test_a_waiting_message_is_postponed_and_joins_the_tail(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(named("a", b"a"), named("b", b"b"), named("c", b"c"))
    before = now_ms(keys.client)
    [result] = await postpone(line, "b", delay_ms=1_500)
    assert result.settled == DELAYED
    assert before - 1 <= result.available_at.ToMilliseconds() - 1_500 <= now_ms(keys.client)
    assert result.attempts == 0
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (2, 1)
    assert [(seen.position, seen.message.id) for seen in await line.peek(5)] == [(1, "a"), (2, "c")]
    await line.put(named("d", b"d"))
    await eventually(lambda: has_delayed(line, 0))
    deliveries = await line.take(4)
    assert payloads(deliveries) == [b"a", b"c", b"d", b"b"]
    assert [delivery.attempt for delivery in deliveries] == [1] * 4
    assert now_ms(keys.client) >= result.available_at.ToMilliseconds()
    await assert_sound(line)


async def has_delayed(line: Line, count: int) -> bool:
    return (await line.counts()).delayed == count


async def test_a_delayed_message_is_given_another_time(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(named("sooner", b"sooner", delay=span(LONG_MS)), named("later", b"later", delay=span(100)))
    at = int(now_ms(keys.client)) + 1_500
    first, second = await postpone(line, "later", "sooner", until_ms=at)
    assert (first.settled, first.available_at.ToMilliseconds()) == (DELAYED, at)
    assert (second.settled, second.available_at.ToMilliseconds()) == (DELAYED, at)
    await postpone(line, "sooner", until_ms=at - 300)
    assert payloads(await line.take(1, wait_ms=10_000)) == [b"sooner"]
    assert payloads(await line.take(1, wait_ms=10_000)) == [b"later"]
    await assert_sound(line)


@pytest.mark.parametrize("past", [True, False])
async def test_a_delayed_message_called_now_joins_the_line(line: Line, past: bool) -> None:
    await line.create()
    await line.put(named("a", b"a", delay=span(LONG_MS)), b"other")
    [result] = await (postpone(line, "a", until_ms=1_000) if past else postpone(line, "a", delay_ms=0))
    assert result.settled in {RELEASED, DELAYED}
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (2, 0)
    assert sorted(payloads(await line.take(2))) == [b"a", b"other"]
    await assert_sound(line)


async def test_a_waiting_message_called_now_stays_where_it_is(line: Line) -> None:
    await line.create()
    await line.put(named("a", b"a"), named("b", b"b"))
    [result] = await postpone(line, "b", delay_ms=0)
    assert (result.settled, result.HasField("available_at")) == (RELEASED, False)
    assert payloads(await line.take(2)) == [b"a", b"b"]


async def test_with_no_time_said_it_is_the_backoff_for_its_failures(line: Line, keys: Keys) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(10_000), max_backoff=span(LONG_MS)))
    await line.put(named("a"), named("b"))
    for _ in range(3):
        await line.delay((await line.take_one()).lease, delay_ms=0)
    before = now_ms(keys.client)
    failed, fresh = await postpone(line, "a", "b")
    after = now_ms(keys.client)
    assert before + 40_000 - 1 <= failed.available_at.ToMilliseconds() <= after + 40_000
    assert before + 10_000 - 1 <= fresh.available_at.ToMilliseconds() <= after + 10_000
    assert failed.attempts == 3


async def test_a_message_that_came_back_is_postponed(line: Line) -> None:
    await line.create()
    await line.put(named("a", b"a"), named("b", b"b"))
    taken = await line.take_one()
    await line.delay(taken.lease, delay_ms=0, reason="why")
    [result] = await postpone(line, "a", delay_ms=1_500)
    assert (result.settled, result.attempts) == (DELAYED, 1)
    counts = await line.counts()
    assert (counts.returned, counts.length, counts.delayed) == (0, 1, 1)
    [b, a] = [*await line.take(1), *await line.take(1, wait_ms=10_000)]
    assert (b.message.id, a.message.id, a.attempt) == ("b", "a", 2)
    await assert_sound(line)


async def test_postponing_spends_no_attempt(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await line.put(named("a"))
    for _ in range(3):
        assert settled(await postpone(line, "a", delay_ms=20)) == [DELAYED]
    assert (await line.take_one(wait_ms=10_000)).attempt == 1


async def test_a_message_that_nobody_named_is_postponed_by_the_id_made_for_it(line: Line) -> None:
    await line.create()
    [bare, later] = (await line.put(b"bare", Message(payload=b"later", delay=span(LONG_MS)))).results
    assert settled(await postpone(line, bare.id, later.id, delay_ms=100)) == [DELAYED, DELAYED]
    deliveries = [*await line.take(1, wait_ms=10_000), *await line.take(1, wait_ms=10_000)]
    assert sorted(delivery.message.id for delivery in deliveries) == sorted([bare.id, later.id])
    assert sorted(payloads(deliveries)) == [b"bare", b"later"]
    await assert_sound(line)


async def test_a_leased_message_is_its_holders(line: Line) -> None:
    await line.create()
    await line.put(named("a"))
    lease = (await line.take_one()).lease
    assert settled(await postpone(line, "a", delay_ms=100)) == [STALE]
    assert await line.ack(lease) == [ACKED]


async def test_what_is_finished_or_unknown_is_gone(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, named("dead"))
    await line.put(named("done"), named("withdrawn"))
    await line.ack((await line.take_one()).lease)
    await line.withdraw("withdrawn")
    results = await postpone(line, "dead", "done", "withdrawn", "nobody", "~made-up", delay_ms=100)
    assert settled(results) == [GONE] * 5
    assert not any(result.HasField("available_at") for result in results)
    counts = await line.counts()
    assert (counts.dead, counts.delayed) == (1, 0)


async def test_leases_come_first_and_then_ids(line: Line) -> None:
    await line.create()
    await line.put(named("held"), named("a"), named("b"))
    lease = (await line.take_one()).lease
    results = await line.delay("made-up", lease, delay_ms=LONG_MS, message_ids=["b", "nobody", "a"], reason="all")
    assert [(result.lease, result.id, result.settled) for result in results] == [
        ("made-up", "", GONE),
        (lease, "", DELAYED),
        ("", "b", DELAYED),
        ("", "nobody", GONE),
        ("", "a", DELAYED),
    ]
    assert (await line.counts()).delayed == 3
    await assert_sound(line)


async def test_the_same_id_twice_is_postponed_once(line: Line) -> None:
    await line.create()
    await line.put(named("a"))
    await postpone(line, "a", "a", delay_ms=LONG_MS)
    counts = await line.counts()
    assert (counts.delayed, counts.length) == (1, 0)
    await assert_sound(line)


async def test_ids_of_an_unknown_queue_are_gone_and_no_error(line: Line) -> None:
    assert settled(await postpone(line, "a", delay_ms=1)) == [GONE]


async def test_postponing_makes_room_for_a_producer_that_waits(line: Line) -> None:
    await line.create(bound=1)
    await line.put(named("a"))
    waiting = asyncio.create_task(line.put(b"next", wait_ms=20_000))
    await eventually(lambda: producer_waits(line))
    await postpone(line, "a", delay_ms=LONG_MS)
    assert (await asyncio.wait_for(waiting, 10)).results[0].position == 1


async def producer_waits(line: Line) -> bool:
    return (await line.describe()).counts.producers_waiting == 1


async def test_calling_a_delayed_message_now_wakes_who_waits(line: Line) -> None:
    await line.create()
    await line.put(named("a", b"a", delay=span(LONG_MS)))
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumer_waits(line))
    await postpone(line, "a", delay_ms=0)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"a"]


async def consumer_waits(line: Line) -> bool:
    return (await line.describe()).counts.consumers_waiting == 1


@pytest.mark.parametrize(("leases", "ids"), [(0, 0), (0, MAX_BATCH + 1), (500, 501)])
async def test_leases_and_ids_together_are_one_batch(line: Line, leases: int, ids: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if ids else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(*["made-up"] * leases, delay_ms=1, message_ids=["a"] * ids)
    assert list(said.violations) == ["leases"]


async def test_the_largest_batch_is_postponed(line: Line) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(MAX_BATCH)]
    await line.put(*(named(message_id) for message_id in ids))
    assert settled(await postpone(line, *ids, delay_ms=LONG_MS)) == [DELAYED] * MAX_BATCH
    counts = await line.counts()
    assert (counts.delayed, counts.length) == (MAX_BATCH, 0)
    await assert_sound(line)


@pytest.mark.parametrize("delay_ms", [-1, -0.000001, 366 * 24 * 3_600_000 + 0.001])
async def test_a_delay_out_of_its_range_is_refused_and_nothing_moves(line: Line, delay_ms: float) -> None:
    await line.create()
    await line.put(named("a"))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await postpone(line, "a", delay_ms=delay_ms)
    assert list(said.violations) == ["delay"]
    assert (await line.counts()).length == 1


async def test_a_time_more_than_366_days_ahead_is_refused_and_nothing_moves(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(named("a"))
    too_far = int(now_ms(keys.client)) + 366 * 24 * 3_600_000 + 60_000
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await postpone(line, "a", until_ms=too_far)
    assert list(said.violations) == ["until"]
    assert (await line.counts()).length == 1


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\n", "\x00"], ids=ascii)
async def test_an_id_that_is_no_id_is_refused_with_the_whole_call(line: Line, bad: str) -> None:
    await line.create()
    await line.put(named("a"))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await postpone(line, "a", bad, delay_ms=1)
    assert list(said.violations) == ["message_ids[1]"]
    assert (await line.counts()).length == 1


async def test_a_postponed_message_expires_all_the_same(line: Line) -> None:
    await line.create()
    await line.put(named("a", time_to_live=span(300)))
    await postpone(line, "a", delay_ms=LONG_MS)
    await eventually(lambda: has_delayed(line, 0))
    assert (await line.counts()).expired == 1
