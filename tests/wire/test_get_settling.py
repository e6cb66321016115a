"""Get that settles earlier leases in the same step."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from headway.v1 import admin_service_pb2
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    FAILED_PRECONDITION,
    GONE,
    INVALID_ARGUMENT,
    SLACK_S,
    STALE,
    Line,
    leases,
    payloads,
)
from wire.conditions import consumers_wait, leased
from wire.test_pause import pause, resume

MAX_BATCH = 1_000


async def settled(line: Line, *tokens: str, wait_ms: float = 0) -> list[int]:
    return [result.settled for result in (await line.get(ack=tokens, wait_ms=wait_ms)).settled]


async def test_earlier_leases_are_acked_in_the_same_call(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    first = await line.take(2)
    answer = await line.get(ack=leases(first))
    assert [result.settled for result in answer.settled] == [ACKED, ACKED]
    assert [result.lease for result in answer.settled] == leases(first)
    assert payloads(answer.deliveries) == [b"3"]
    counts = await line.counts()
    assert (counts.acked, counts.leased) == (2, 1)


async def test_earlier_leases_are_acked_though_nothing_is_leased(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    taken = await line.take(2)
    assert await settled(line, taken[0].lease) == [ACKED]
    assert await settled(line, taken[0].lease, taken[1].lease, "made-up") == [ALREADY_ACKED, ACKED, GONE]
    assert (await line.counts()).acked == 2


async def test_a_waiting_get_settles_at_once_and_not_only_when_it_ends(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    lease = (await line.take_one()).lease
    waiting = asyncio.create_task(line.get(wait_ms=20_000, ack=[lease]))
    await eventually(lambda: is_acked(line, 1))
    assert not waiting.done()
    await line.put(b"2")
    answer = await asyncio.wait_for(waiting, 10)
    assert ([result.settled for result in answer.settled], payloads(answer.deliveries)) == ([ACKED], [b"2"])


async def is_acked(line: Line, count: int) -> bool:
    return (await line.describe()).counts.acked == count


async def test_a_call_that_settles_answers_with_that_and_not_with_an_error(line: Line) -> None:
    assert line.admin is not None
    await line.create()
    await line.put(b"1", b"2", b"3")
    one, two, three = await line.take(3)
    await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)
    assert await settled(line, one.lease) == [ACKED]
    await line.admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=SLACK_S)
    await line.close()
    assert await settled(line, two.lease) == [ACKED]
    assert await settled(line, three.lease, wait_ms=5_000) == [ACKED]  # now it is drained
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_a_stale_lease_is_told_and_the_rest_goes_on(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    old = await line.take_one()
    await line.delay(old.lease, delay_ms=0)
    new = await line.take_one()
    answer = await line.get(ack=[old.lease, new.lease])
    assert [result.settled for result in answer.settled] == [STALE, ACKED]
    assert payloads(answer.deliveries) == [b"2"]


async def test_a_late_ack_brings_nobody_before_those_who_stand(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1")
    lapsed = await line.take_one(lease_ms=100)
    await pause(line)
    await eventually(lambda: leased(line, 0))
    first = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    second = asyncio.create_task(line.get(wait_ms=20_000, ack=[lapsed.lease]))
    await eventually(lambda: consumers_wait(line, 2))
    await line.put(b"2")
    await resume(line)
    [delivery] = (await asyncio.wait_for(first, 10)).deliveries
    assert delivery.message.payload == b"2"
    await line.ack(delivery.lease)
    await line.put(b"3")
    answer = await asyncio.wait_for(second, 10)
    assert ([result.settled for result in answer.settled], payloads(answer.deliveries)) == ([ACKED], [b"3"])


@pytest.mark.parametrize("count", [MAX_BATCH, MAX_BATCH + 1])
async def test_so_many_leases_can_be_settled_at_once(line: Line, count: int) -> None:
    await line.create()
    if count > MAX_BATCH:
        with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
            await line.get(ack=["x"] * count)
        assert said.metadata == {"field": "ack", "limit": str(MAX_BATCH), "size": str(count)}
    else:
        await line.put(*(b"x" for _ in range(count)))
        assert await settled(line, *leases(await line.take(count))) == [ACKED] * count
