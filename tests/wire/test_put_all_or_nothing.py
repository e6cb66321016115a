"""Put of all or nothing: a batch is whole or not there."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from harness import error_of, eventually, refused
from headway.v1 import message_pb2
from wire.calls import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    Line,
    named,
    payloads,
)
from wire.conditions import producers_wait

KEEP = message_pb2.ON_DUPLICATE_KEEP


async def test_all_or_nothing_puts_all(line: Line) -> None:
    await line.create(bound=3)
    results = (await line.put(b"1", b"2", b"3", all_or_nothing=True)).results
    assert [result.position for result in results] == [1, 2, 3]


async def test_all_or_nothing_puts_nothing_if_there_is_not_room_for_all(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"one")
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"1", b"2", b"3", all_or_nothing=True)
    assert (await line.counts()).accepted == 1


async def test_all_or_nothing_waits_for_room_for_all(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"one", b"two")
    waiting = asyncio.create_task(line.put(b"1", b"2", b"3", all_or_nothing=True, wait_ms=20_000))
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    assert await producers_wait(line, 1)
    assert (await line.counts()).length == 1
    await line.take()
    assert [result.position for result in (await asyncio.wait_for(waiting, 10)).results] == [1, 2, 3]


async def test_all_or_nothing_that_could_never_fit_is_refused_at_once(line: Line) -> None:
    await line.create(bound=2)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await line.put(b"1", b"2", b"3", all_or_nothing=True, wait_ms=60_000)
    said = error_of(error.value)
    assert said.code in {INVALID_ARGUMENT, FAILED_PRECONDITION}
    assert said.reason in {"FIELD_INVALID", "TOO_LARGE"}
    assert (await line.counts()).accepted == 0


async def test_all_or_nothing_with_a_known_id_puts_nothing(line: Line) -> None:
    await line.create()
    await line.put(named("one"))
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
        await line.put(b"new", named("one"), all_or_nothing=True)
    assert said.metadata == {"queue": line.name, "id": "one"}
    assert (await line.counts()).accepted == 1


async def test_all_or_nothing_keeps_known_ids_and_puts_the_others(line: Line) -> None:
    await line.create(bound=2)
    await line.put(named("one"))
    results = (await line.put(named("one"), b"new", all_or_nothing=True, on_duplicate=KEEP)).results
    assert [(result.deduplicated, result.position) for result in results] == [(True, 1), (False, 2)]


async def test_racing_batches_of_all_or_nothing_are_each_whole(line: Line) -> None:
    await line.create()
    await asyncio.gather(*(line.put(*(b"%d" % who for _ in range(5)), all_or_nothing=True) for who in range(20)))
    got = payloads(await line.take(100))
    assert all(len(set(got[at : at + 5])) == 1 for at in range(0, 100, 5))
