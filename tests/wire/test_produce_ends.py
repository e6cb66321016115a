"""How a Produce stream ends, and what it leaves behind: bad input, callers that vanish, queues that go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import message_pb2, queue_service_pb2
from wire.calls import INVALID_ARGUMENT, UNAVAILABLE, Line, Message, line_at, payloads
from wire.conditions import producers_wait
from wire.flows import Producing, reasons, waiting_payloads


async def test_a_caller_that_goes_leaves_the_line_and_what_was_accepted_stays(line: Line) -> None:
    await line.create(bound=2)
    async with Producing(line) as stream:
        await stream.send(b"1", b"2", b"3")
        await stream.send(b"4")
        await eventually(lambda: producers_wait(line, 1))
    await eventually(lambda: producers_wait(line, 0))
    assert payloads(await line.take(2)) == [b"1", b"2"]
    assert (await line.put(b"next")).results[0].ticket == 3
    counts = await line.counts()
    assert (counts.length, counts.accepted) == (1, 3)


async def test_a_connection_that_breaks_leaves_the_line(
    line: Line, service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    await line.create(bound=1)
    async with line_at(service.address, line.name, connect) as there:
        stream = Producing(there)
        await stream.send(b"1", b"2")
        await eventually(lambda: producers_wait(line, 1))
    await eventually(lambda: producers_wait(line, 0))
    await stream.cancel()
    assert await waiting_payloads(line) == [b"1"]


async def test_the_streams_deadline_bounds_its_wait_for_room(line: Line) -> None:
    await line.create(bound=1)
    async with Producing(line, timeout=2) as stream:
        results = await stream.put(b"1", b"2", b"3")
        assert reasons(results) == ["", "QUEUE_FULL", "QUEUE_FULL"]
        assert results[1].error.metadata == {"queue": line.name, "bound": "1"}
    assert await waiting_payloads(line) == [b"1"]


async def test_a_queue_that_is_deleted_while_the_stream_waits_is_told(line: Line) -> None:
    await line.create(bound=1)
    async with Producing(line) as stream:
        number = await stream.send(b"1", b"2")
        await eventually(lambda: producers_wait(line, 1))
        await line.delete()
        assert reasons(await stream.answer(number)) == ["QUEUE_DELETED"] * 2
        await line.create()
        assert reasons(await stream.put(b"3")) == [""]


async def test_a_queue_that_is_closed_while_the_stream_waits_keeps_what_was_accepted(line: Line) -> None:
    await line.create(bound=1)
    async with Producing(line) as stream:
        number = await stream.send(b"1", b"2")
        await eventually(lambda: producers_wait(line, 1))
        await line.close()
        assert reasons(await stream.answer(number)) == ["", "QUEUE_CLOSED"]
    assert await waiting_payloads(line) == [b"1"]


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"queue": "q:bound"}, "NAME_REFUSED", "queue"),
        ({"queue": ""}, "NAME_REFUSED", "queue"),
        ({"on_duplicate": 9}, "FIELD_INVALID", "on_duplicate"),
    ],
    ids=str,
)
async def test_a_bad_first_request_ends_the_stream(line: Line, fields: dict[str, Any], reason: str, field: str) -> None:
    await line.create()
    async with Producing(line) as stream:
        await stream.send(b"x", **fields)
        with refused(reason, INVALID_ARGUMENT) as said:
            await stream.ended()
        assert list(said.violations) == [field]
    assert (await line.counts()).accepted == 0


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "FIELD_INVALID"),
        ([b"x"] * 1_001, "TOO_LARGE"),
        ([b"x" * (1024 * 1024 + 1)], "TOO_LARGE"),
        ([b"fine", Message(id="~mine", payload=b"x")], "FIELD_INVALID"),
    ],
    ids=["empty", "too many", "too large", "bad id"],
)
async def test_a_bad_request_ends_the_stream_behind_the_answers_to_those_before(
    line: Line, messages: list[bytes | message_pb2.Message], reason: str
) -> None:
    await line.create()
    async with Producing(line) as stream:
        await stream.send(b"before")
        await stream.send(*messages)
        with refused(reason, INVALID_ARGUMENT):
            await stream.ended()
        assert stream.answered == [1]
    assert await waiting_payloads(line) == [b"before"]


async def test_a_request_of_nothing_at_all_ends_the_stream_too(line: Line) -> None:
    await line.create()
    async with Producing(line) as stream:
        await stream.send(b"before")
        await stream.call.write(queue_service_pb2.ProduceRequest())  # not a byte
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await stream.ended()
        assert list(said.violations) == ["messages"]
    async with Producing(line) as stream:
        await stream.call.write(queue_service_pb2.ProduceRequest())
        with refused("NAME_REFUSED", INVALID_ARGUMENT):
            await stream.ended()
    assert await waiting_payloads(line) == [b"before"]


async def test_bytes_that_are_no_request_end_the_stream(line: Line, channel: grpc.aio.Channel) -> None:
    await line.create()
    raw: Callable[..., grpc.aio.StreamStreamCall[bytes, bytes]] = channel.stream_stream(
        "/headway.v1.QueueService/Produce"
    )
    for broken in (b"\x0a\xff\x01short", b"\xff" * 40):
        with refused("FIELD_INVALID", INVALID_ARGUMENT):
            async for _ in raw(iter([broken]), timeout=10):
                pytest.fail("nothing was asked")


async def test_a_stream_without_a_batch_ends_well(line: Line) -> None:
    async with Producing(line) as stream:
        await stream.done()
        assert await stream.ended() == []


async def test_draining_answers_what_was_accepted_and_ends_with_shutting_down(
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    service = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
    async with line_at(service.address, "jobs", connect) as line:
        await line.create(bound=2)
        async with Producing(line) as waiting, Producing(line) as idle:
            await idle.put(b"0")
            number = await waiting.send(b"1", b"2")
            await waiting.send(b"3")
            await eventually(lambda: producers_wait(line, 1))
            stopping = asyncio.create_task(asyncio.to_thread(service.stop))
            assert reasons(await waiting.answer(number)) == ["", "SHUTTING_DOWN"]
            for stream in (waiting, idle):
                with refused("SHUTTING_DOWN", UNAVAILABLE):
                    await stream.ended()
            assert waiting.answered == [number]
            await stopping
