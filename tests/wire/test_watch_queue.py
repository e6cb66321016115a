"""WatchQueue: a queue's numbers, when they change."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from harness import refused
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, Keys, Line, now_ms
from wire.streams import Standing
from wire.watches import watching_queue

INTERVAL_MS = 400
SOON_S = 5.0  # before everything is looked at again that was not heard of


def has(length: int) -> Any:
    return lambda told: told.queue.counts.length == length


async def test_the_numbers_come_at_once_and_as_describe_tells_them(line: Line, keys: Keys) -> None:
    await line.create(bound=7)
    await line.put(b"one")
    before = now_ms(keys.client)
    async with watching_queue(line) as watched:
        told = await watched.next()
    described = await line.describe()
    for queue in (told.queue, described):
        for field in ("oldest_age", "put_rate", "ack_rate"):
            queue.counts.ClearField(field)
    assert told.queue == described
    assert before - 1 <= told.as_of.ToMilliseconds() <= now_ms(keys.client)
    assert told.HasField("eta")
    assert not told.eta.known


async def test_every_kind_of_change_is_told(line: Line) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next(has(0))
        await line.put(b"one")
        await watched.next(has(1))
        lease = (await line.take_one()).lease
        await watched.next(lambda told: told.queue.counts.leased == 1)
        await line.delay(lease, delay_ms=60_000)
        await watched.next(lambda told: told.queue.counts.delayed == 1)
        await line.update(limit=5)
        await watched.next(lambda told: told.queue.policy.limit == 5)
        await line.close()
        await watched.next(lambda told: told.queue.closed)


async def test_who_comes_to_a_line_of_waiters_and_leaves_it_is_told(line: Line) -> None:
    await line.create(bound=1)

    def wait(*waiting: int) -> Any:
        """So many consumers, and so many producers."""
        return lambda told: (told.queue.counts.consumers_waiting, told.queue.counts.producers_waiting) == waiting

    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next(wait(0, 0), within=SOON_S)
        getting = asyncio.create_task(line.get(wait_ms=60_000))
        await watched.next(wait(1, 0), within=SOON_S)
        async with Standing(line):
            await watched.next(wait(2, 0), within=SOON_S)
            getting.cancel()
            await watched.next(wait(1, 0), within=SOON_S)
        await watched.next(wait(0, 0), within=SOON_S)
        await line.put(b"one")
        putting = [asyncio.create_task(line.put(b"more", wait_ms=60_000)) for _ in range(2)]
        await watched.next(wait(0, 2), within=SOON_S)
        putting.pop().cancel()
        await watched.next(wait(0, 1), within=SOON_S)
        putting.pop().cancel()
        await watched.next(wait(0, 0), within=SOON_S)


async def test_what_foreign_clients_hold_is_told(line: Line, keys: Keys) -> None:
    await line.create()

    def hold(*taken: bool) -> Any:
        """The role of the consumer, and that of the producer."""
        return lambda told: (told.queue.roles.consumer.taken, told.queue.roles.producer.taken) == taken

    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next(has(0))
        keys.client.rpop(keys["consumer_free"])
        await watched.next(hold(True, False), within=SOON_S)
        keys.client.rpop(keys["producer_free"])
        await watched.next(hold(True, True), within=SOON_S)
        keys.client.lpush(keys["consumer_free"], 0)
        await watched.next(hold(False, True), within=SOON_S)
        keys.client.lpush(keys["producer_free"], 0)
        await watched.next(hold(False, False), within=SOON_S)


async def test_what_foreign_clients_do_is_told(line: Line, keys: Keys) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next(has(0))
        keys.put(b"foreign")
        await watched.next(has(1))


async def test_a_foreign_queue_is_watched_to_its_end(line: Line, keys: Keys) -> None:
    keys.create(b"first")
    async with watching_queue(line, interval_ms=100) as watched:
        begun = (await watched.next(has(1))).queue
        assert begun.generation
        for length in (2, 3):
            keys.put(b"more")
            await watched.next(has(length))
        await line.delete()
        with refused("QUEUE_DELETED", NOT_FOUND):
            await watched.end()
    lives = {(told.queue.generation, told.queue.created_at.ToMilliseconds()) for told in watched.told}
    assert lives == {(begun.generation, begun.created_at.ToMilliseconds())}


async def test_at_most_one_message_in_an_interval(line: Line) -> None:
    await line.create()
    began = time.monotonic()
    async with watching_queue(line, interval_ms=INTERVAL_MS) as slow, watching_queue(line, interval_ms=100) as quick:
        await slow.next(has(0))
        for number in range(1, 21):
            await line.put(b"x")
            await quick.next(has(number))
        await slow.next(has(20))
    whole_intervals = int((time.monotonic() - began) * 1_000 / INTERVAL_MS)
    assert len(slow.told) <= whole_intervals + 2  # at its beginning and at its end
    assert len(slow.told) < len(quick.told)


async def test_nothing_is_told_while_nothing_changes(line: Line) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=100) as watched, watching_queue(line, interval_ms=100) as other:
        await watched.next()
        await other.next()
        await line.put(b"x")
        await other.next(has(1))
        await watched.next(has(1))
        assert [told.queue.counts.length for told in watched.told] == [0, 1]


async def test_a_deleted_queue_ends_the_stream(line: Line) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next()
        await line.delete()
        with refused("QUEUE_DELETED", NOT_FOUND) as said:
            await watched.end()
    assert said.metadata == {"queue": line.name}


async def test_a_queue_made_anew_ends_the_stream_of_the_old_one(line: Line) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=100) as watched:
        await watched.next()
        await line.delete()
        await line.create()
        with refused("QUEUE_DELETED", NOT_FOUND):
            await watched.end()
        async with watching_queue(line) as anew:
            await anew.next(has(0))


async def test_who_waits_out_a_long_interval_is_told_at_once_that_the_queue_is_no_more(line: Line) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=3_600_000) as watched:
        await watched.next()
        await line.put(b"one")  # which it is told in an hour
        await line.delete()
        with refused("QUEUE_DELETED", NOT_FOUND):
            await watched.end()


async def test_who_comes_to_a_queue_made_anew_is_told_its_numbers_whoever_watches_the_old_one(line: Line) -> None:
    for _ in range(10):
        await line.create()
        await line.put(b"old")
        async with watching_queue(line, interval_ms=3_600_000) as old:
            await old.next(has(1))
            await line.delete()
            await line.create()
            async with watching_queue(line) as anew:
                told = await anew.next()
                assert told.queue.counts.length == 0
                assert told.queue == await line.describe()
            with refused("QUEUE_DELETED", NOT_FOUND):
                await old.end()
        await line.delete()


async def test_who_comes_when_the_queue_is_no_more_is_told_that_it_is_not_there(line: Line) -> None:
    for _ in range(10):
        await line.create()
        async with watching_queue(line, interval_ms=3_600_000) as old:
            await old.next()
            await line.delete()
            async with watching_queue(line) as late:
                with refused("QUEUE_NOT_FOUND", NOT_FOUND):
                    await late.end()
            with refused("QUEUE_DELETED", NOT_FOUND):
                await old.end()


async def test_a_queue_that_is_not_there_is_not_found(line: Line) -> None:
    async with watching_queue(line) as watched:
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await watched.end()
    assert said.metadata == {"queue": line.name}


@pytest.mark.parametrize("interval_ms", [-1, 0, 99.999999, 3_600_000.001])
async def test_an_interval_out_of_its_range_is_refused(line: Line, interval_ms: float) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=interval_ms) as watched:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await watched.end()
    assert list(said.violations) == ["interval"]


@pytest.mark.parametrize("interval_ms", [100, 3_600_000])
async def test_an_interval_up_to_its_bounds_is_taken(line: Line, interval_ms: float) -> None:
    await line.create()
    async with watching_queue(line, interval_ms=interval_ms) as watched:
        await watched.next()
