"""Get that waits for its first message: in order, and as long as it said."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_service_pb2
from wire.calls import FAILED_PRECONDITION, SLACK_S, Keys, Line, now_ms, payloads, span
from wire.conditions import consumers_wait


async def test_a_get_waits_as_long_as_it_said(line: Line, keys: Keys) -> None:
    await line.create()
    before = now_ms(keys.client)
    assert (await line.get(wait_ms=300)).deliveries == []
    assert 290 <= now_ms(keys.client) - before < 5_000


async def test_a_get_that_waits_past_its_deadline_is_answered_before_it(line: Line) -> None:
    await line.create()
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(60_000))

    async def is_answered_before_it() -> bool:
        started = time.monotonic()
        try:
            answer = await line.stub.Get(request, timeout=1)
        except grpc.aio.AioRpcError as error:
            # On a busy machine the last moment before the deadline may pass unused: then it is tried again.
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return False
        assert list(answer.deliveries) == []
        return 0.5 < time.monotonic() - started < 1

    await eventually(is_answered_before_it, within=20)
    await eventually(lambda: consumers_wait(line, 0))


async def test_waiting_gets_are_served_first_come_first_served(line: Line) -> None:
    await line.create()
    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(line.get(wait_ms=30_000)))
        await eventually(lambda count=number: consumers_wait(line, count + 1))  # type: ignore[misc]
    for number in range(5):
        await line.put(b"%d" % number)
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [payloads(answer.deliveries) for answer in answers] == [[b"%d" % number] for number in range(5)]


async def test_one_put_of_many_serves_all_who_wait(line: Line) -> None:
    await line.create()
    waiting = [asyncio.create_task(line.get(2, wait_ms=30_000)) for _ in range(4)]
    await eventually(lambda: consumers_wait(line, 4))
    await line.put(*(b"%d" % number for number in range(8)))
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    got = sorted(payload for answer in answers for payload in payloads(answer.deliveries))
    assert got == [b"%d" % number for number in range(8)]
    assert all(answer.deliveries for answer in answers)


async def test_waiting_gets_need_no_connection_each(line: Line, keys: Keys) -> None:
    await line.create()
    others = [Line(line.stub, f"{line.name}-{number}") for number in range(50)]
    for other in others:
        await other.create()
    before = keys.connections()
    waiting = [asyncio.create_task(one.get(wait_ms=60_000)) for one in (line, *others) for _ in range(4)]
    await eventually(lambda: consumers_wait(others[-1], 4), within=20)
    assert keys.connections() <= before + 20  # for 204 calls that wait
    for call in waiting:
        call.cancel()
    await asyncio.wait(waiting)
    for other in others:
        await other.delete()


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_a_paused_queue_gives_nothing_and_a_waiting_get_waits_for_the_resume(line: Line, wait_ms: float) -> None:
    assert line.admin is not None
    await line.create()
    await line.put(b"one")
    await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)
    if not wait_ms:
        with refused("QUEUE_PAUSED", FAILED_PRECONDITION) as said:
            await line.get()
        assert said.metadata == {"queue": line.name}
        return
    waiting = asyncio.create_task(line.get(wait_ms=wait_ms))
    await eventually(lambda: consumers_wait(line, 1))
    await line.admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=SLACK_S)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"one"]
