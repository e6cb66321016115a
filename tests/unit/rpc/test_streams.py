"""Calls that stream: every way in which one ends, and that its clean-up has ended before the call is counted out.

The schema's streams are the shapes; what they do is the test's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import grpc
import grpc.aio
import pytest
import structlog.testing

from harness.clocks import run
from harness.errors import refused
from headway.v1 import queue_pb2, queue_service_pb2_grpc
from headway.v1.message_pb2 import PutResult
from headway.v1.queue_service_pb2 import ProduceRequest, ProduceResponse, WatchQueueRequest, WatchQueueResponse
from headwayd.domain.errors import HeadwayError, OutcomeUnknown, Overloaded, QueueNotFound, ShuttingDown
from headwayd.domain.limits import Limits
from headwayd.rpc.edge import CallRouter, Gate, service_handlers
from headwayd.rpc.room import Room
from headwayd.rpc.server import QUEUE_SERVICE
from headwayd.rpc.streams import Requests, Stream

BAD = b"\x0a\x02\xff\xfe"  # a queue's name that is no UTF-8
MOST_RUNNING = 3
WATCH = "/headway.v1.QueueService/WatchQueue"
PRODUCE = "/headway.v1.QueueService/Produce"


class Streams(queue_service_pb2_grpc.QueueServiceServicer):
    """Does in its streams what the test says; `cleaned_up` is set when a stream's `finally` has run to its end."""

    def __init__(self) -> None:
        self.watch: Callable[[], AsyncGenerator[int, None]] = self.forever
        self.started = asyncio.Event()
        self.cleaning_up = asyncio.Event()
        self.may_clean_up = asyncio.Event()
        self.may_clean_up.set()
        self.cleaned_up = asyncio.Event()

    async def forever(self) -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    async def WatchQueue(  # noqa: N802 - the schema's name
        self, request: WatchQueueRequest, context: object
    ) -> AsyncIterator[WatchQueueResponse]:
        del request, context
        self.started.set()
        try:
            async for number in self.watch():
                yield WatchQueueResponse(queue=queue_pb2.Queue(name=str(number)))
        finally:
            self.cleaning_up.set()
            await self.may_clean_up.wait()
            self.cleaned_up.set()

    async def Produce(  # noqa: N802 - the schema's name
        self, requests: AsyncIterator[ProduceRequest], context: object
    ) -> AsyncIterator[ProduceResponse]:
        del context
        self.started.set()
        try:
            async for request in requests:
                yield ProduceResponse(batch=request.batch, results=[PutResult(id=request.queue)])
        finally:  # the requests end when the caller goes, before the call is cancelled: shielded
            await asyncio.shield(self.clean_up())

    async def clean_up(self) -> None:
        await asyncio.sleep(0)
        self.cleaned_up.set()


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def gate() -> Gate:
    return Gate(Limits(max_running_calls=MOST_RUNNING))


@pytest.fixture
async def grpc_server(streams: Streams, gate: Gate) -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server()
    handlers = service_handlers(streams, QUEUE_SERVICE, gate=gate, max_request_bytes=1_000)
    server.add_generic_rpc_handlers((CallRouter(handlers, gate=gate, refusals={}),))
    yield server
    await server.stop(None)


@pytest.fixture
async def address(grpc_server: grpc.aio.Server) -> str:
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    return f"127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def incidents() -> Iterator[list[Any]]:
    """What was logged; a test that expects an incident takes it out."""
    with structlog.testing.capture_logs() as logged:
        yield logged
    assert logged == []


def watch(channel: grpc.aio.Channel, request: bytes = b"\x0a\x01q") -> Any:
    call: Any = channel.unary_stream(WATCH, response_deserializer=WatchQueueResponse.FromString)
    return call(request, timeout=10)


def produce(channel: grpc.aio.Channel) -> Any:
    call: Any = channel.stream_stream(PRODUCE, response_deserializer=ProduceResponse.FromString)
    return call(timeout=10)


async def ended(streams: Streams, gate: Gate) -> None:
    """Waits until the stream has cleaned up; it must not have been counted out before."""
    async with asyncio.timeout(5):
        assert await gate.wait_until_idle(5)
    assert streams.cleaned_up.is_set()


async def names(call: Any) -> list[str]:
    return [reply.queue.name async for reply in call]


async def rest_of(call: Any) -> int:
    """Reads to the end of a stream that was read from before; how many replies there were."""
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    return count


async def counting(most: int, error: Exception | None = None) -> AsyncGenerator[int, None]:
    for number in range(most):
        yield number
    if error is not None:
        raise error


async def test_streams_leave_a_tenth_to_other_calls() -> None:
    gate = Gate(Limits(max_running_calls=10))
    with ExitStack() as opened:
        for _ in range(9):
            gate.enter()
            gate.admit_stream("")
            opened.enter_context(gate.ending(cast("Stream", object())))
        gate.enter()
        with pytest.raises(Overloaded):
            gate.admit_stream("")
        gate.admit(is_settling=False)
        gate.enter()
        with pytest.raises(Overloaded):
            gate.admit(is_settling=False)
    gate.leave()
    gate.admit_stream("")


async def test_a_stream_may_count_as_many() -> None:
    gate = Gate(Limits(max_running_calls=10, max_streams_per_connection=8))
    stream = cast("Stream", object())
    with ExitStack() as opened:
        gate.enter()
        with pytest.raises(Overloaded) as caught:
            gate.admit_stream("ipv4:a:1", 9)
        assert caught.value.metadata == {"limit": "max_streams_per_connection"}
        gate.admit_stream("ipv4:a:1", 8)
        opened.enter_context(gate.ending(stream, "ipv4:a:1", 8))
        gate.enter()
        with pytest.raises(Overloaded):
            gate.admit_stream("ipv4:a:1")
        with pytest.raises(Overloaded) as caught:
            gate.admit_stream("ipv4:a:2", 2)
        assert caught.value.metadata == {"limit": "max_streams"}
        gate.admit_stream("ipv4:a:2")
        gate.enter()
        gate.admit(is_settling=False)
        gate.enter()
        with pytest.raises(Overloaded) as caught:
            gate.admit(is_settling=False)
        assert caught.value.metadata == {"limit": "max_running_calls"}
    gate.leave()
    gate.leave()
    assert gate.left_to_run == 8
    gate.enter()
    with pytest.raises(Overloaded) as caught:
        gate.admit_stream("ipv4:a:1", 9)
    assert caught.value.metadata == {"limit": "max_running_calls"}


async def test_a_connection_has_so_many_streams_and_others_have_theirs() -> None:
    gate = Gate(Limits(max_streams_per_connection=2))
    stream = cast("Stream", object())
    with ExitStack() as opened:
        for _ in range(2):
            gate.admit_stream("ipv4:a:1")
            opened.enter_context(gate.ending(stream, "ipv4:a:1"))
        with pytest.raises(Overloaded) as caught:
            gate.admit_stream("ipv4:a:1")
        assert caught.value.metadata == {"limit": "max_streams_per_connection"}
        gate.admit_stream("ipv4:a:2")
    gate.admit_stream("ipv4:a:1")


async def test_connections_of_a_unix_socket_cannot_be_told_apart_and_are_not_counted() -> None:
    gate = Gate(Limits(max_streams_per_connection=1))
    with gate.ending(cast("Stream", object()), "unix:"):
        gate.admit_stream("unix:")


async def test_a_stream_brings_all_and_ends_well(streams: Streams, gate: Gate, channel: grpc.aio.Channel) -> None:
    streams.watch = lambda: counting(1_000)
    call = watch(channel)
    assert await names(call) == [str(number) for number in range(1_000)]
    assert await call.code() is grpc.StatusCode.OK
    await ended(streams, gate)


async def test_a_stream_may_be_empty(streams: Streams, gate: Gate, channel: grpc.aio.Channel) -> None:
    streams.watch = lambda: counting(0)
    assert await names(watch(channel)) == []
    await ended(streams, gate)


@pytest.mark.parametrize("told_before", [0, 2])
async def test_an_error_ends_the_stream_with_its_status(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel, told_before: int
) -> None:
    streams.watch = lambda: counting(told_before, QueueNotFound("gone", metadata={"queue": "q"}))
    call = watch(channel)
    heard = []
    with refused("QUEUE_NOT_FOUND", grpc.StatusCode.NOT_FOUND) as said:
        async for reply in call:
            heard.append(reply.queue.name)  # noqa: PERF401 - it ends with an error
    assert heard == [str(number) for number in range(told_before)]
    assert said.metadata == {"queue": "q"}
    await ended(streams, gate)


async def test_a_defect_is_an_incident_and_tells_nothing_else(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel, incidents: list[Any]
) -> None:
    streams.watch = lambda: counting(1, ValueError("a secret"))
    with refused("INTERNAL", grpc.StatusCode.INTERNAL) as said:
        await names(watch(channel))
    assert "secret" not in said.message
    await ended(streams, gate)
    (logged,) = incidents
    assert (logged["incident"], logged["method"]) == (said.metadata["incident"], "WatchQueue")
    incidents.clear()


async def test_a_request_that_cannot_be_read_is_refused(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    with refused("NAME_REFUSED", grpc.StatusCode.INVALID_ARGUMENT) as said:
        await names(watch(channel, BAD))
    assert said.metadata == {"field": "queue"}
    with refused("TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT):
        await names(watch(channel, b"\x00" * 1_001))
    assert not streams.started.is_set()
    assert await gate.wait_until_idle(5)  # it is told of before it is counted out


async def test_a_caller_that_goes_ends_the_stream_and_its_clean_up_is_waited_for(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    streams.may_clean_up.clear()
    call = watch(channel)
    assert (await call.read()).queue.name == "1"
    call.cancel()
    await asyncio.wait_for(streams.cleaning_up.wait(), 5)
    assert gate.running_count == 1
    streams.may_clean_up.set()
    await ended(streams, gate)


async def test_a_stream_is_cancelled_once_however_often_its_call_is(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel, grpc_server: grpc.aio.Server
) -> None:
    streams.may_clean_up.clear()
    call = watch(channel)
    await call.read()
    gate.start_draining()
    call.cancel()
    await asyncio.wait_for(streams.cleaning_up.wait(), 5)
    gate.start_draining()
    await grpc_server.stop(None)
    assert not await gate.wait_until_idle(0.05)
    assert not streams.cleaned_up.is_set()
    streams.may_clean_up.set()
    await ended(streams, gate)


async def test_a_caller_that_goes_in_the_middle_of_a_reply_is_no_incident(
    streams: Streams, gate: Gate, address: str
) -> None:
    streams.watch = lambda: counting(1_000_000)
    for number in range(20):
        streams.cleaned_up.clear()
        async with grpc.aio.insecure_channel(address) as channel:
            call = watch(channel)
            await call.read()
            if number % 2:
                call.cancel()
        await ended(streams, gate)


async def test_a_reader_that_does_not_read_keeps_no_stream_from_cleaning_up_and_learns_its_end_later(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    most = 0

    async def flood() -> AsyncGenerator[int, None]:
        nonlocal most
        for number in range(10**9):
            most = number
            yield 10**4_000

    streams.watch = flood
    call = watch(channel)
    await call.read()
    before = -1
    async with asyncio.timeout(10):
        while most != before:  # until it waits for the reader
            before = most
            await asyncio.sleep(0.05)
    gate.start_draining()
    await asyncio.wait_for(streams.cleaned_up.wait(), 5)
    with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
        await rest_of(call)
    await ended(streams, gate)


async def test_a_deadline_that_passes_ends_the_stream(streams: Streams, gate: Gate, channel: grpc.aio.Channel) -> None:
    call: Any = channel.unary_stream(WATCH)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(b"\x0a\x01q", timeout=0.1):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await ended(streams, gate)


async def test_draining_ends_streams_and_refuses_new_ones(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    call, both = watch(channel), produce(channel)
    await call.read()
    await both.write(ProduceRequest(queue="q").SerializeToString())
    await both.read()
    gate.start_draining()
    for stream in (call, both):
        with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE) as said:
            await rest_of(stream)
        assert said.retry_delay is not None
    await ended(streams, gate)
    streams.started.clear()
    with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
        await names(watch(channel))
    assert not streams.started.is_set()


async def test_a_stream_that_says_itself_why_it_ends_is_believed(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    waits = asyncio.Event()

    async def until_cancelled() -> AsyncGenerator[int, None]:
        yield 1
        try:
            waits.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ShuttingDown("in my own words") from None

    streams.watch = until_cancelled
    call = watch(channel)
    await call.read()
    await waits.wait()
    gate.start_draining()
    with refused("SHUTTING_DOWN") as said:
        await rest_of(call)
    assert said.message == "in my own words"


async def test_streams_count_as_running_calls(streams: Streams, gate: Gate, channel: grpc.aio.Channel) -> None:
    calls = [watch(channel) for _ in range(MOST_RUNNING)]
    for call in calls:
        await call.read()
    assert gate.running_count == MOST_RUNNING
    with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED):
        await names(watch(channel))
    for call in calls:
        call.cancel()
    await ended(streams, gate)


async def test_both_ways_each_request_gets_its_reply_until_the_sender_is_done(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    call = produce(channel)
    for batch in range(50):
        await call.write(ProduceRequest(queue=f"q{batch}", batch=batch).SerializeToString())
        reply = await call.read()
        assert (reply.batch, reply.results[0].id) == (batch, f"q{batch}")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await ended(streams, gate)


async def test_both_ways_a_request_that_cannot_be_read_ends_the_stream_and_the_ones_before_are_answered(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel
) -> None:
    call = produce(channel)
    await call.write(ProduceRequest(queue="q").SerializeToString())
    assert (await call.read()).results[0].id == "q"
    await call.write(BAD)
    with refused("NAME_REFUSED", grpc.StatusCode.INVALID_ARGUMENT):
        await rest_of(call)
    await ended(streams, gate)


@pytest.mark.parametrize("is_reading", [True, False])
async def test_both_ways_a_caller_that_goes_ends_the_stream(
    streams: Streams, gate: Gate, channel: grpc.aio.Channel, is_reading: bool
) -> None:
    call = produce(channel)
    await call.write(ProduceRequest(queue="q").SerializeToString())
    if is_reading:
        await call.read()
    else:
        await asyncio.wait_for(streams.started.wait(), 5)
    call.cancel()
    await ended(streams, gate)


# -- slow readers of answers ------------------------------------------------------------------------------------------


class SlowReader:
    """A call whose every reply takes so long to leave."""

    def __init__(self, write_s: float) -> None:
        self.written: list[int] = []
        self._write_s = write_s

    async def write(self, reply: int) -> None:
        self.written.append(reply)
        await asyncio.sleep(self._write_s)


def answered_slowly(
    write_s: float, end: Callable[[Stream], None], *, room: Room | None = None, asks: int = 3
) -> tuple[list[int], BaseException | None]:
    """What leaves of the answers to so many requests, all of which were done at once, and how the stream ends. `end` is
    called while the first is on its way."""

    async def ask() -> AsyncIterator[int]:
        for number in range(asks):
            yield number
        await asyncio.Event().wait()

    async def play() -> tuple[list[int], BaseException | None]:
        context, requests = SlowReader(write_s), Requests(ask(), room=room)

        async def answer() -> AsyncGenerator[int, None]:
            for number in [await anext(requests) for _ in range(asks)]:
                yield number
            await anext(requests)

        stream = Stream(answer(), cast("Any", context), "Produce", requests=requests)
        asyncio.get_running_loop().call_later(write_s / 2, end, stream)
        try:
            await stream.run()
        except HeadwayError as error:
            return context.written, error
        return context.written, None

    return run(play)


def test_going_down_lets_answers_leave_one_after_the_other() -> None:
    written, error = answered_slowly(0.8, Stream.end, room=Room(1_000))
    assert written == [0, 1, 2]
    assert type(error) is ShuttingDown


CUT_OFF = pytest.mark.parametrize(
    "end", [Stream.end, lambda stream: stream.end_if_unread(10)], ids=["going down", "unread"]
)


@CUT_OFF
@pytest.mark.parametrize("counts_answers", [True, False])
def test_whose_answers_are_cut_off_is_not_told_that_nothing_happened(
    end: Callable[[Stream], None], counts_answers: bool
) -> None:
    written, error = answered_slowly(5, end, room=Room(1_000) if counts_answers else None)
    assert written == [0]
    assert type(error) is OutcomeUnknown
    assert error.metadata == {"cause": "UNREAD"}


@CUT_OFF
def test_who_asked_for_nothing_but_the_start_is_told_why_it_was_cut_off(end: Callable[[Stream], None]) -> None:
    _, error = answered_slowly(5, end, asks=1)
    assert type(error) in (ShuttingDown, Overloaded)
