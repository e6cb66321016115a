"""Limits that a process has as a whole: at each one calls are served, beyond it they are refused at once, and say why.

What single requests may hold is tested with the calls that have it: test_put_fields, test_get_fields, and so on.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import psutil
import pytest

from bench.http2 import PREFACE, SETTINGS, frame
from harness import ServiceProcess, StoreServer, error_of, eventually, refused
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import ACKED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, SLACK_S, UNAVAILABLE, Line, Message, line_at
from wire.test_get_server_info import info

pytestmark = pytest.mark.any_store

Connect = Callable[[str], grpc.aio.Channel]
Open = Callable[[], Awaitable[Line]]

KIB = 1024
# As low as they may be, so that each bound is reached with a few calls.
LOW = {
    "HEADWAY_MAX_RUNNING_CALLS": "20",  # 18 streams
    "HEADWAY_MAX_STREAMS_PER_CONNECTION": "9",
    "HEADWAY_MAX_CONNECTIONS": "10",
    "HEADWAY_MAX_METADATA_BYTES": "4096",
    "HEADWAY_MAX_MESSAGE_BYTES": str(64 * KIB),
    "HEADWAY_MAX_REQUEST_BYTES": str(128 * KIB),
    "HEADWAY_MAX_RUNNING_BYTES": str(128 * KIB),
    "HEADWAY_WRITE_TIMEOUT": "1s",
}
# Messages of 63 KiB: gRPC's client takes some MiB though nobody reads.
MORE_THAN_IS_BUFFERED = 300
HUGE_BYTES = 64 * KIB * KIB


# For those tests whose limit is held where calls are taken.
both_ways = pytest.mark.parametrize("is_plain", ["false", "true"], ids=["fast", "plain"], indirect=True)


@pytest.fixture
def is_plain(request: pytest.FixtureRequest) -> str:
    """Whether calls are taken the plain way."""
    return str(getattr(request, "param", "false"))


@pytest.fixture
def small(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, queue_name: str, is_plain: str
) -> ServiceProcess:
    """A service with low limits and a prefix of its own."""
    prefix = f"__{queue_name}__"
    return make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix, HEADWAY_PLAIN=is_plain, **LOW)


@pytest.fixture
async def lines(small: ServiceProcess, connect: Connect) -> AsyncIterator[Open]:
    """One queue, made already, each time over a connection of its own."""
    async with AsyncExitStack() as stack:

        async def another() -> Line:
            line = await stack.enter_async_context(line_at(small.address, "jobs", connect))
            await line.create(bound=1)
            return line

        yield another


async def watching(line: Line) -> Any:
    """A stream that is open: its first reply is there."""
    call: Any = line.stub.WatchQueue(pb.WatchQueueRequest(queue=line.name), timeout=60)
    await call.read()
    return call


async def eventually_watching(line: Line) -> None:
    """Waits until a stream is taken again."""

    async def is_taken() -> bool:
        try:
            await watching(line)
        except grpc.aio.AioRpcError:
            return False
        return True

    await eventually(is_taken)


async def test_the_limits_in_force_are_published(lines: Open) -> None:
    told = (await info(await lines())).limits
    assert (told.max_running_calls, told.max_streams, told.max_streams_per_connection) == (20, 18, 9)
    assert (told.max_connections, told.max_metadata_bytes) == (10, 4_096)
    assert (told.max_message_bytes, told.max_request_bytes) == (64 * KIB, 128 * KIB)
    assert told.max_running_bytes == 128 * KIB
    assert told.max_pending_calls >= 100
    assert (told.max_headers, told.max_header_key_bytes, told.max_header_value_bytes) == (64, 128, 4_096)


async def test_streams_of_one_connection_and_of_all_have_their_bounds(lines: Open) -> None:
    first, second, third = [await lines() for _ in range(3)]
    streams = [await watching(first) for _ in range(9)]
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await watching(first)
    assert said.metadata == {"limit": "max_streams_per_connection"}
    assert said.retry_delay is not None
    streams += [await watching(second) for _ in range(9)]
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await watching(third)
    assert said.metadata == {"limit": "max_streams"}
    await third.describe()  # calls have room still
    streams[0].cancel()
    await eventually_watching(first)


async def test_calls_have_a_bound(lines: Open) -> None:
    line, beside = await lines(), await lines()
    waiting = [asyncio.create_task(line.get(wait_ms=30_000)) for _ in range(19)]

    async def all_wait() -> bool:
        return (await beside.counts()).consumers_waiting == 19  # the one that asks is the twentieth

    await eventually(all_wait)

    async def is_full() -> bool:
        if waiting[-1].done() or len(waiting) == 19:  # a Describe came before it
            waiting.append(asyncio.create_task(line.get(wait_ms=30_000)))
        try:
            await beside.describe()
        except grpc.aio.AioRpcError:
            return not waiting[-1].done()
        return False

    await eventually(is_full)
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await beside.describe()
    assert said.metadata == {"limit": "max_running_calls"}
    for call in waiting:
        call.cancel()


async def test_connections_have_a_bound_and_one_that_ends_makes_room(small: ServiceProcess, connect: Connect) -> None:
    request = pb.ListRequest()
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(10):
            opened.append(await stack.enter_async_context(connect(small.address)))
            await QueueServiceStub(opened[-1]).List(request, timeout=SLACK_S)
        async with connect(small.address) as beyond:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await QueueServiceStub(beyond).List(request, timeout=SLACK_S)
            assert caught.value.code() is UNAVAILABLE
        await opened[0].close()

        async def has_room() -> bool:
            async with connect(small.address) as again:
                try:
                    await QueueServiceStub(again).List(request, timeout=SLACK_S)
                except grpc.aio.AioRpcError:
                    return False
            return True

        await eventually(has_room)


async def test_metadata_has_a_bound(lines: Open) -> None:
    line = await lines()

    async def call_with(size: int) -> None:
        # Without a deadline, which would be metadata of its own, now longer, now shorter.
        call = line.stub.List(pb.ListRequest(), metadata=(("x", "a" * size),))
        async with asyncio.timeout(SLACK_S):
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call_with(4_000)
    assert caught.value.code() is RESOURCE_EXHAUSTED
    # gRPC's own text tells how much it was in all.
    told = re.search(r"\((\d+) vs\. ", caught.value.details() or "")
    assert told, caught.value.details()
    most = 4_000 - (int(told[1]) - 4_096)
    await call_with(most)
    with pytest.raises(grpc.aio.AioRpcError):
        await call_with(most + 1)


async def test_what_is_too_large_to_be_read_is_refused_while_it_comes_in(small: ServiceProcess, lines: Open) -> None:
    line, process = await lines(), psutil.Process(small.pid)
    most = before = process.memory_info().rss
    huge = Message(payload=bytes(HUGE_BYTES))
    calls = [asyncio.create_task(line.put(huge)) for _ in range(3)]
    while not all(call.done() for call in calls):
        most = max(most, process.memory_info().rss)
        await asyncio.sleep(0.01)
    for call in calls:
        error = call.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is RESOURCE_EXHAUSTED
    assert most - before < HUGE_BYTES / 2
    assert (await line.counts()).length == 0


@both_ways
async def test_a_request_of_the_limit_is_read_and_one_more_byte_is_too_large(lines: Open) -> None:
    line = await lines()
    await line.update(bound=0)
    filler = Message(payload=b"x" * KIB)
    request = pb.PutRequest(queue="jobs", messages=[*large(2), filler], producer="p")
    request.messages[2].payload += b"x" * (128 * KIB - request.ByteSize())
    assert request.ByteSize() == 128 * KIB
    answer = await line.stub.Put(request, timeout=SLACK_S)
    assert not any(result.HasField("error") for result in answer.results)
    request.producer += "p"
    with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
        await line.stub.Put(request, timeout=SLACK_S)
    sizes = {"limit": str(128 * KIB), "size": str(128 * KIB + 1)}
    assert said.metadata == {"field": "request"} | sizes
    stream: Any = line.stub.Produce(timeout=60)
    await stream.write(pb.ProduceRequest(queue="jobs", messages=[*request.messages, filler]))
    with refused("TOO_LARGE", INVALID_ARGUMENT):
        while await stream.read() is not grpc.aio.EOF:
            pass


def large(count: int = 1) -> list[Message]:
    """Messages of nearly 64 KiB: two of them fit into a request, and fill the process."""
    return [Message(payload=b"x" * (63 * KIB)) for _ in range(count)]


@both_ways
async def test_large_requests_have_a_bound_together_and_one_that_ends_makes_room(lines: Open) -> None:
    line, beside = await lines(), await lines()
    await line.put(b"held")
    held = await line.take_one()
    await line.put(b"full")
    waiting = asyncio.create_task(line.put(*large(2), wait_ms=30_000))

    async def waits() -> bool:
        return (await beside.counts()).producers_waiting == 1

    await eventually(waits)
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await beside.put(*large())
    assert said.metadata == {"limit": "max_running_bytes"}
    assert said.retry_delay is not None
    assert await beside.ack(held.lease) == [ACKED]  # small requests go on
    waiting.cancel()

    async def has_room() -> bool:
        try:
            await beside.put(*large())
        except grpc.aio.AioRpcError as error:
            return error_of(error).reason == "QUEUE_FULL"  # it was looked at
        return True

    await eventually(has_room)


@both_ways
async def test_large_requests_of_streams_count_as_long_as_these_last(lines: Open) -> None:
    """Whatever is in them: here a field that nobody knows, of 70 KiB."""
    line, beside = await lines(), await lines()
    unknown = b"\xa2\x06" + struct.pack("BBB", 0x80 | 70 * KIB & 0x7F, 0x80 | 70 * KIB >> 7 & 0x7F, 70 * KIB >> 14)
    request = pb.WatchQueueRequest.FromString(b"\x0a\x04jobs" + unknown + b"x" * (70 * KIB))
    call: Any = line.stub.WatchQueue(request, timeout=60)
    await call.read()
    for refusing in (beside.stub.WatchQueue(request, timeout=60).read(), beside.put(*large())):
        with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
            await refusing
        assert said.metadata == {"limit": "max_running_bytes"}
    await watching(beside)  # small requests go on
    call.cancel()

    async def has_room() -> bool:
        try:
            return bool(await beside.put(*large()))
        except grpc.aio.AioRpcError:
            return False

    await eventually(has_room)


@both_ways
async def test_long_ids_that_are_watched_leave_large_batches_their_room(lines: Open) -> None:
    """They are kept for as long as somebody watches; a batch that waited for their room could do so for hours."""
    line, beside, third = [await lines() for _ in range(3)]
    await line.update(bound=0)
    ids = [f"{number:0200}" for number in range(440)]
    for first in range(0, 440, 110):
        await line.put(*(Message(id=one) for one in ids[first : first + 110]))

    async def watching_long_ids(line: Line, count: int) -> Any:
        call: Any = line.stub.WatchPosition(
            pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=ids[:count])), timeout=60
        )
        await call.read()
        return call

    kept = await watching_long_ids(line, 127)  # 25 KiB, and 8 streams
    # Of those for which it cannot count as more streams the bytes count: of all but 128.
    watch = await watching_long_ids(third, 440)
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await beside.put(*large(2))
    assert said.metadata == {"limit": "max_running_bytes"}
    watch.cancel()

    async def has_room() -> bool:
        try:
            return len((await beside.put(*large(2))).results) == 2
        except grpc.aio.AioRpcError:
            return False

    await eventually(has_room)
    stream: Any = beside.stub.Produce(timeout=60)
    await stream.write(pb.ProduceRequest(queue="jobs", messages=large(2)))
    async with asyncio.timeout(SLACK_S):
        assert len((await stream.read()).results) == 2
    assert not kept.done()


@both_ways
async def test_who_watches_many_messages_counts_as_many_streams(lines: Open) -> None:
    line, beside, third = [await lines() for _ in range(3)]
    await line.update(bound=0)
    ids = [f"m{number}" for number in range(144)]
    await line.put(*(Message(id=one) for one in ids))

    async def watching_messages(line: Line, ids: list[str]) -> Any:
        call: Any = line.stub.WatchPosition(
            pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=ids)), timeout=60
        )
        await call.read()
        return call

    streams = [await watching(line)]
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await watching_messages(line, ids[:128])  # as 9
    assert said.metadata == {"limit": "max_streams_per_connection"}
    streams += [await watching_messages(line, ids[:127])]  # as 8
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await watching(line)
    assert said.metadata == {"limit": "max_streams_per_connection"}
    streams += [await watching_messages(beside, ids[:127]), await watching(beside)]  # as 8, and one
    with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
        await watching(third)
    assert said.metadata == {"limit": "max_streams"}
    await beside.describe()  # calls have room still
    streams[0].cancel()
    await eventually_watching(line)


async def test_who_watches_more_messages_than_there_are_streams_is_served_alone(lines: Open) -> None:
    line = await lines()
    await line.update(bound=0)
    ids = [f"m{number}" for number in range(160)]  # as 11, of 9
    await line.put(*(Message(id=one) for one in ids))
    call: Any = line.stub.WatchPosition(
        pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=ids)), timeout=60
    )
    await call.read()
    with refused("OVERLOADED", RESOURCE_EXHAUSTED):
        await watching(line)
    call.cancel()


@both_ways
async def test_a_stream_of_large_batches_is_held_back_until_there_is_room(lines: Open) -> None:
    line, beside = await lines(), await lines()
    await line.put(b"full")
    waiting = asyncio.create_task(line.put(*large(2), wait_ms=30_000))

    async def waits() -> bool:
        return (await beside.counts()).producers_waiting == 1

    await eventually(waits)
    other = Line(beside.stub, "others", beside.admin)
    await other.create()
    stream: Any = beside.stub.Produce(timeout=60)
    await stream.write(pb.ProduceRequest(queue="others", messages=large(), batch=1))
    await stream.write(pb.ProduceRequest(queue="others", messages=large(), batch=2))
    answer = asyncio.create_task(stream.read())
    assert (await other.counts()).length == 0
    assert not answer.done()
    waiting.cancel()
    assert (await asyncio.wait_for(answer, SLACK_S)).batch == 1
    assert (await stream.read()).batch == 2  # what the first one took is free again
    stream.cancel()


@both_ways
async def test_batches_of_a_stream_that_waits_count_however_small_they_are(lines: Open) -> None:
    """Sixteen batches of a hundred small messages are some kilobytes on the wire, and much more in the process."""
    line, beside = await lines(), await lines()
    await line.put(b"full")
    stream: Any = line.stub.Produce(timeout=60)
    for number in range(16):
        batch = [Message(payload=b"x")] * 100
        await stream.write(pb.ProduceRequest(queue="jobs", messages=batch, batch=number))

    async def is_overloaded() -> bool:
        try:
            await beside.put(*large())
        except grpc.aio.AioRpcError as error:
            return error_of(error).reason == "OVERLOADED"
        return False

    await eventually(is_overloaded)
    assert (await beside.counts()).length == 1  # small requests go on
    stream.cancel()

    async def has_room() -> bool:
        return not await is_overloaded()

    await line.update(bound=0)
    await eventually(has_room)


async def test_who_does_not_read_loses_the_stream_and_what_it_leased(lines: Open) -> None:
    line, beside = await lines(), await lines()
    await line.update(bound=0)
    for _ in range(MORE_THAN_IS_BUFFERED // 2):
        await line.put(*large(2))
    stream: Any = line.stub.Consume(timeout=60)
    credit = pb.Credit(messages=MORE_THAN_IS_BUFFERED)
    await stream.write(pb.ConsumeRequest(start=pb.ConsumeStart(queue="jobs", credit=credit)))

    async def are_leased() -> bool:
        return (await beside.counts()).leased > 0

    async def are_back() -> bool:
        return (await beside.counts()).length == MORE_THAN_IS_BUFFERED

    await eventually(are_leased)
    await eventually(are_back)
    again = await beside.take_one()
    assert again.attempt == 1  # at no attempt's cost

    async def rest() -> None:
        while await stream.read() is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError):
        await asyncio.wait_for(rest(), SLACK_S)


# -- what is sent and not read ----------------------------------------------------------------------------------------

INITIAL_WINDOW_SIZE = 4  # HTTP/2's name of it


@pytest.mark.parametrize("window", [65_535, 300_000])
async def test_clients_are_told_how_much_a_call_may_send_before_it_is_read(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, window: int
) -> None:
    service = make_service(HEADWAY_REDIS_URL=store_server.url, HEADWAY_RECEIVE_WINDOW=str(window))
    host, _, port = service.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
    async with asyncio.timeout(SLACK_S):
        head = await reader.readexactly(9)
        told = dict(struct.iter_unpack(">HL", await reader.readexactly(int.from_bytes(head[:3]))))
    writer.close()
    assert head[3] == SETTINGS
    assert told.get(INITIAL_WINDOW_SIZE, 65_535) == window
