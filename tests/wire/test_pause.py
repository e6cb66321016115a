"""Pause and Resume: a paused queue takes messages and hands none out."""

from __future__ import annotations

import asyncio

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2
from wire.calls import ACKED, FAILED_PRECONDITION, NOT_FOUND, SLACK_S, Line, payloads
from wire.conditions import consumers_wait


async def pause(line: Line) -> queue_pb2.Queue:
    assert line.admin is not None
    return (await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)).queue


async def resume(line: Line) -> queue_pb2.Queue:
    assert line.admin is not None
    return (await line.admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=SLACK_S)).queue


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    for call in (pause, resume):
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await call(line)
        assert said.metadata == {"queue": line.name}


async def test_pausing_and_resuming_are_told_and_idempotent(line: Line) -> None:
    await line.create()
    for _ in range(2):
        assert (await pause(line)).paused
    assert (await line.describe()).paused
    for _ in range(2):
        assert not (await resume(line)).paused
    assert not (await line.describe()).paused


async def test_a_paused_queue_hands_nothing_out_and_takes_everything_else(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    one, two = await line.take(2)
    await pause(line)
    with refused("QUEUE_PAUSED", FAILED_PRECONDITION) as said:
        await line.get()
    assert said.metadata == {"queue": line.name}
    assert await line.ack(one.lease) == [ACKED]
    await line.extend(two.lease)
    await line.delay(two.lease, delay_ms=0)
    assert (await line.put(b"4")).results[0].position == 3
    assert [seen.message.payload for seen in await line.peek(3)] == [b"2", b"3", b"4"]
    await resume(line)
    assert payloads(await line.take(3)) == [b"2", b"3", b"4"]


async def test_a_message_put_while_paused_wakes_nobody_until_the_resume(line: Line) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await pause(line)
    await line.put(b"1")
    assert (await line.get(wait_ms=200)).deliveries == []
    assert not waiting.done()
    await resume(line)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"1"]


async def test_a_paused_and_drained_queue_says_that_it_is_drained(line: Line) -> None:
    await line.create()
    await line.close()
    await pause(line)
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_a_wait_that_ends_during_a_pause_is_an_empty_answer(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    await pause(line)
    assert (await line.get(wait_ms=200)).deliveries == []
