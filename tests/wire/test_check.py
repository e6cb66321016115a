"""Check: a queue that works has no findings, and whatever is broken in its keys is named."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, Keys, Line, Message, assert_balanced, leases, span
from wire.conditions import has_dead
from wire.operators import check, redrive

LONG_MS = 600_000


async def findings(line: Line) -> list[str]:
    return list((await check(line)).findings)


async def furnish(line: Line) -> None:
    """A queue in which every key has something: all states, ids, holes, outcomes, attempts, an expiry."""
    retry = queue_pb2.Retry(max_attempts=2, min_backoff=span(LONG_MS), max_backoff=span(LONG_MS))
    await line.create(retry=retry, bound=1_000, dead_letter_expired=True)
    await line.put(*(b"together %d" % number for number in range(10)))
    together = await line.take(10)
    await line.ack(*leases(together)[2:5])
    await line.put(
        *(Message(id=f"m{number}", payload=b"%d" % number, headers={"h": "1"}) for number in range(12)),
        *(b"bare %d" % number for number in range(4)),
        Message(id="later", delay=span(LONG_MS)),
        Message(id="mortal", time_to_live=span(LONG_MS)),
        Message(payload=b"later too", delay=span(LONG_MS)),
        Message(id="gone", time_to_live=span(20), delay=span(LONG_MS)),
    )
    taken = await line.take(6)  # m0 … m5
    await line.ack(taken[0].lease, result=b"42")
    await line.delay(taken[1].lease, delay_ms=0, reason="no luck")
    await line.delay(taken[2].lease, reason="later")
    dying = taken[3]
    await line.delay(dying.lease, delay_ms=0)
    again = {delivery.message.id: delivery for delivery in await line.take(2)}  # m1, m3
    await line.delay(again["m3"].lease, delay_ms=0, reason="dead")
    await line.delay(again["m1"].lease, delay_ms=0, keep_attempt=True)
    await line.withdraw("m7", "m9")
    await line.put(Message(id="m8", payload=b"new"), on_duplicate=message_pb2.ON_DUPLICATE_REPLACE)
    await line.get(1, attempt_id="attempt")
    await eventually(lambda: has_dead(line, 2))


# All is well.


async def test_an_empty_queue_is_sound(line: Line) -> None:
    await line.create()
    checked = await check(line)
    assert (list(checked.findings), checked.counts.accepted) == ([], 0)


async def test_a_queue_with_messages_in_every_state_is_sound(line: Line) -> None:
    await furnish(line)
    checked = await check(line)
    assert list(checked.findings) == []
    assert_balanced(checked.counts)
    described = (await line.describe()).counts
    for name in ("length", "leased", "delayed", "dead", "returned", "accepted", "acked", "withdrawn", "expired"):
        assert getattr(checked.counts, name) == getattr(described, name), name
    assert checked.entries >= described.length + described.leased + described.delayed + described.dead


async def test_a_closed_paused_and_overfull_queue_is_sound(line: Line) -> None:
    await furnish(line)
    await line.update(bound=2)
    await line.close()
    assert await findings(line) == []


async def test_a_busy_queue_is_sound_at_every_look(line: Line) -> None:
    await line.create(
        retry=queue_pb2.Retry(max_attempts=3, min_backoff=span(5), max_backoff=span(20)), bound=200, limit=20
    )
    end = asyncio.get_running_loop().time() + 3
    chance = random.Random(7)  # repeatable

    def goes_on() -> bool:
        return asyncio.get_running_loop().time() < end

    async def produce() -> None:
        while goes_on():
            batch = [
                Message(
                    id=f"m{chance.randrange(150)}" if chance.random() < 0.6 else "",
                    payload=b"x",
                    delay=span(chance.choice((0, 0, 15))),
                    time_to_live=span(chance.choice((30, LONG_MS))),
                )
                for _ in range(5)
            ]
            how = chance.choice((message_pb2.ON_DUPLICATE_KEEP, message_pb2.ON_DUPLICATE_REPLACE))
            with contextlib.suppress(grpc.aio.AioRpcError):  # it may be full
                await line.put(*batch, on_duplicate=how, wait_ms=50)

    async def work() -> None:
        while goes_on():
            name = f"attempt {chance.randrange(5)}" if chance.random() < 0.3 else ""
            deliveries = (await line.get(4, wait_ms=20, lease_ms=100, attempt_id=name)).deliveries
            tokens = leases(deliveries)
            await (line.ack(*tokens[:2]) if tokens else asyncio.sleep(0))
            if tokens[2:3]:
                await line.delay(tokens[2], delay_ms=chance.choice((None, 0, 10)))

    async def operate() -> None:
        while goes_on():
            await line.withdraw(*(f"m{chance.randrange(150)}" for _ in range(5)))
            await line.delay(delay_ms=10, message_ids=[f"m{chance.randrange(150)}"])
            with contextlib.suppress(TimeoutError):  # it waits for room, and at the end nobody makes any
                async with asyncio.timeout_at(end):
                    await redrive(line)

    async def look() -> int:
        looks = 0
        while goes_on():
            checked = await check(line)
            assert list(checked.findings) == []
            assert_balanced(checked.counts)
            looks += 1
        return looks

    *_, looks = await asyncio.gather(produce(), produce(), work(), work(), operate(), look())
    assert looks > 10
    assert await findings(line) == []


async def test_checking_changes_nothing(line: Line, keys: Keys) -> None:
    await furnish(line)
    before = {key: keys.client.dump(key) for key in keys.all()}
    await check(line)
    assert {key: keys.client.dump(key) for key in keys.all()} == before


# What is broken is named.


@pytest.fixture
async def furnished(line: Line) -> Line:
    await furnish(line)
    assert await findings(line) == []
    return line


def own_keys(keys: Keys) -> list[str]:
    """Headway's own keys of the queue, as suffixes of its own segment."""
    base = keys["x:"]
    return sorted(key.removeprefix(base) for key in keys.all() if key.startswith(base))


def names(found: list[str], suffix: str) -> bool:
    """Whether a finding names this key of ours."""
    return any(re.search(rf":x:{suffix}\b", finding) for finding in found)


# Nobody else knows what these knew: when messages that were never leased expire, and roughly when payloads were put.
ONLY_THEY_KNOW = {"expiry", "times"}
# A field that nobody knows may be a newer version's.
MAY_HAVE_MORE = {"meta"}


@contextmanager
def meddled(keys: Keys, key: str) -> Iterator[Any]:
    """The raw store; afterwards the key is as it was before."""
    raw: Any = keys.client
    saved = raw.dump(key)
    try:
        yield raw
    finally:
        raw.restore(key, 0, saved, replace=True)


async def test_every_key_of_ours_that_is_lost_is_missed(furnished: Line, keys: Keys) -> None:
    silent = []
    for suffix in own_keys(keys):
        key = keys[f"x:{suffix}"]
        with meddled(keys, key) as raw:
            raw.delete(key)
            if not names(await findings(furnished), suffix):
                silent.append(suffix)
    assert await findings(furnished) == []
    assert set(silent) <= ONLY_THEY_KNOW


async def test_a_stranger_in_any_key_of_ours_is_named(furnished: Line, keys: Keys) -> None:
    silent = []
    for suffix in own_keys(keys):
        key = keys[f"x:{suffix}"]
        with meddled(keys, key) as raw:
            match raw.type(key):
                case b"list":
                    raw.lpush(key, b"a stranger")
                case b"hash":
                    raw.hset(key, "stranger", "1")
                case b"zset":
                    raw.zadd(key, {"stranger": 1})
                case _:
                    continue
            if not names(await findings(furnished), suffix):
                silent.append(suffix)
    assert await findings(furnished) == []
    assert set(silent) <= MAY_HAVE_MORE


async def test_a_key_of_another_kind_is_named_and_no_defect(furnished: Line, keys: Keys) -> None:
    for suffix in own_keys(keys):
        key = keys[f"x:{suffix}"]
        with meddled(keys, key) as raw:
            is_text = raw.type(key) == b"string"
            raw.delete(key)
            if is_text:
                raw.lpush(key, "a list")
            else:
                raw.set(key, "text")
            found = await findings(furnished)
        assert names(found, suffix), (suffix, found)


async def test_a_line_that_lost_or_gained_an_element_unseen_is_named(furnished: Line, keys: Keys) -> None:
    """Not as a foreign client does it, which leaves a trace in pressure's counters."""
    for at in (0, -1):
        with meddled(keys, keys[""]) as raw:
            raw.lset(keys[""], at, b"\xf5HW\x01 no frame at all")
            assert await findings(furnished)
    assert await findings(furnished) == []


async def test_at_most_100_findings_are_told(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(*(Message(id=f"m{number}", delay=span(LONG_MS)) for number in range(500)))
    for key in keys.all():
        if key.startswith(keys["x:"]) and keys.client.type(key) == b"hash" and keys.client.hlen(key) >= 500:
            keys.client.delete(key)
    found = await findings(line)
    assert 0 < len(found) <= 100


# What is refused.


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await check(line)
    assert said.metadata == {"queue": line.name}


async def test_a_queue_with_more_entries_than_one_would_look_at_is_refused(line: Line) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(50)))
    with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
        await check(line, max_entries=10)
    assert said.metadata["limit"] == "10"
    assert int(said.metadata["size"]) >= 50
    assert (await check(line, max_entries=int(said.metadata["size"]))).findings == []
    with refused("TOO_LARGE"):
        await check(line, max_entries=int(said.metadata["size"]) - 1)


async def test_a_large_queue_is_checked_in_time(line: Line) -> None:
    await line.create()
    for _ in range(50):
        await line.put(*(b"x" for _ in range(1_000)))
    checked = await check(line)
    assert (list(checked.findings), checked.counts.length) == ([], 50_000)
    assert checked.entries >= 50_000
