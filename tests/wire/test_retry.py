"""Retries over the wire: how many deliveries, how long the waits, and that nothing of it is forgotten by a crash.

Exact instants are shown with a clock of the tests' own in `tests/integration/test_exact_instants.py`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import queue_pb2
from wire.calls import DEAD, DELAYED, RELEASED, Keys, Line, Message, line_at, now_ms, span
from wire.operators import all_dead, assert_sound

DAY_MS = 24 * 3_600_000


async def fail_once(line: Line, **how: object) -> tuple[int, int, float]:
    """Takes the next message and gives it back by the backoff: how, its failures, and the wait in ms."""
    delivery = await line.take_one(wait_ms=10_000)
    before = delivery.lease_expires_at.ToMilliseconds()
    [result] = await line.delay(delivery.lease, **how)  # type: ignore[arg-type]
    assert result.attempts == delivery.attempt
    return result.settled, result.attempts, result.available_at.ToMilliseconds() - before


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
@pytest.mark.parametrize("how", ["given back", "lapsed", "in turn"])
async def test_a_message_is_delivered_exactly_as_often_as_it_may_fail(line: Line, max_attempts: int, how: str) -> None:
    retry = queue_pb2.Retry(max_attempts=max_attempts, min_backoff=span(10), max_backoff=span(20))
    await line.create(retry=retry)
    await line.put(Message(id="a", payload=b"x"))
    for attempt in range(1, max_attempts + 1):
        lapses = how == "lapsed" or (how == "in turn" and attempt % 2)
        delivery = await line.take_one(wait_ms=10_000, lease_ms=100 if lapses else 60_000)
        assert delivery.attempt == attempt
        if not lapses:
            [result] = await line.delay(delivery.lease, reason=f"failure {attempt}")
            assert result.settled == (DEAD if attempt == max_attempts else DELAYED)
    await eventually(lambda: is_dead(line))
    assert (await line.get(wait_ms=200)).deliveries == []
    [dead] = await all_dead(line)
    lapsed_last = how == "lapsed" or (how == "in turn" and max_attempts % 2 == 1)
    assert dead.failures == max_attempts
    assert dead.last_error == ("the lease lapsed" if lapsed_last else f"failure {max_attempts}")
    await assert_sound(line)


async def is_dead(line: Line) -> bool:
    return (await line.counts()).dead == 1


async def test_without_a_most_a_message_is_tried_for_ever(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(0), max_backoff=span(0)))
    await line.put(b"x")
    for attempt in range(1, 101):
        delivery = await line.take_one(wait_ms=10_000)
        assert delivery.attempt == attempt
        await line.delay(delivery.lease, delay_ms=0)
    assert (await line.counts()).dead == 0


async def failures(line: Line, count: int) -> None:
    """Fails the message at the head so often, without waiting."""
    for _ in range(count):
        [result] = await line.delay((await line.take_one()).lease, delay_ms=0)
        assert result.settled == RELEASED


@pytest.mark.parametrize(
    ("failed_before", "wait_s"),
    [(0, 1), (1, 2), (2, 4), (3, 8), (8, 256), (9, 300), (10, 300), (61, 300), (62, 300), (63, 300), (99, 300)],
)
async def test_the_backoff_is_1_2_4_8_s_up_to_5_min_after_any_number_of_failures(
    line: Line, keys: Keys, failed_before: int, wait_s: int
) -> None:
    await line.create()
    await line.put(b"x")
    await failures(line, failed_before)
    delivery = await line.take_one()
    before = now_ms(keys.client)
    [result] = await line.delay(delivery.lease)
    after = now_ms(keys.client)
    assert (result.settled, result.attempts) == (DELAYED, failed_before + 1)
    assert before - 1 <= result.available_at.ToMilliseconds() - 1_000 * wait_s <= after
    await assert_sound(line)


async def test_the_largest_backoff_does_not_overflow(line: Line, keys: Keys) -> None:
    retry = queue_pb2.Retry(min_backoff=span(DAY_MS), max_backoff=span(30 * DAY_MS), multiplier=100)
    await line.create(retry=retry)
    await line.put(b"x")
    await failures(line, 70)
    before = now_ms(keys.client)
    [result] = await line.delay((await line.take_one()).lease)
    assert before - 1 <= result.available_at.ToMilliseconds() - 30 * DAY_MS <= now_ms(keys.client)


@pytest.mark.parametrize("jitter", [0.1, 1.0])
async def test_jitter_spreads_each_wait_around_its_own_and_never_above_the_longest(
    line: Line, keys: Keys, jitter: float
) -> None:
    count = 100
    base, longest = 100_000.0, 150_000.0
    retry = queue_pb2.Retry(min_backoff=span(base), max_backoff=span(longest), multiplier=1, jitter=jitter)
    await line.create(retry=retry)
    await line.put(*(b"x" for _ in range(count)))
    before = now_ms(keys.client)
    results = await line.delay(*(delivery.lease for delivery in await line.take(count)))
    after = now_ms(keys.client)
    waits = [result.available_at.ToMilliseconds() - before for result in results]
    assert all(
        base * (1 - jitter) - 2 <= wait <= min(base * (1 + jitter), longest) + (after - before) + 2 for wait in waits
    )
    middle = sum(wait < base for wait in waits)
    assert 20 <= middle <= 80
    assert len(set(waits)) > count // 2


async def test_the_last_error_is_the_newest_that_was_told(line: Line) -> None:
    await line.create()
    await line.put(Message(id="a"))
    for reason in ("first", "second"):
        await line.delay((await line.take_one()).lease, delay_ms=0, reason=reason)
        assert (await line.peek())[0].last_error == reason
    await line.take_one(lease_ms=100)
    await eventually(lambda: has_length(line, 1))
    assert (await line.peek())[0].last_error == "the lease lapsed"


async def has_length(line: Line, length: int) -> bool:
    return (await line.counts()).length == length


async def test_attempts_and_errors_survive_a_kill_of_the_service(
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> None:
    prefix, name = f"p{uuid.uuid4().hex[:8]}", "survivors"
    for attempt in (1, 2, 3):
        service = await asyncio.to_thread(
            lambda: make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
        )
        async with line_at(service.address, name, connect) as line:
            if attempt == 1:
                await line.create(retry=queue_pb2.Retry(max_attempts=3))
                await line.put(Message(id="told", payload=b"x"), Message(id="lapsed", payload=b"y"))
            told, lapsed = sorted(
                await line.take(2, wait_ms=10_000, lease_ms=1_000), key=lambda d: -ord(d.message.id[0])
            )
            assert (told.attempt, lapsed.attempt) == (attempt, attempt)
            await line.delay(told.lease, delay_ms=0, reason=f"failure {attempt}")
            await asyncio.to_thread(service.kill)  # with a lease out
        with store_server.client() as client:
            lapses_at = lapsed.lease_expires_at.ToMilliseconds()
            await eventually(lambda at=lapses_at: now_ms(client) > at)  # type: ignore[misc]
    service = await asyncio.to_thread(lambda: make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix))
    async with line_at(service.address, name, connect) as line:
        await eventually(lambda: both_are_dead(line))
        dead = {one.message.id: (one.failures, one.last_error) for one in await all_dead(line)}
        assert dead == {"told": (3, "failure 3"), "lapsed": (3, "the lease lapsed")}
        await assert_sound(line)
    await asyncio.to_thread(service.stop)


async def both_are_dead(line: Line) -> bool:
    return (await line.counts()).dead == 2


async def test_a_message_dies_once_however_many_say_that_it_failed(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(b"x")
    lease = (await line.take_one()).lease
    answers = await asyncio.gather(*(line.delay(lease, delay_ms=0) for _ in range(20)))
    assert {answer[0].settled for answer in answers} == {DEAD}
    counts = await line.counts()
    assert (counts.dead, counts.accepted) == (1, 1)
    assert len(await all_dead(line)) == 1
    await assert_sound(line)
