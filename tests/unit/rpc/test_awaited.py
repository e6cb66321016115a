"""Calls whose request never comes: they are counted, have a bound and a time, and hold up no shut-down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest

from bench.http2 import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, headers
from harness import eventually
from harness.errors import error_of, refused
from headway.v1.queue_service_pb2 import AckRequest, DescribeRequest
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from headwayd.domain.limits import Limits
from headwayd.engine.counting.counts import Counts
from headwayd.rpc.awaiting import awaited_beside
from headwayd.rpc.backlog import Line
from headwayd.rpc.core.awaited import ALWAYS, Awaited
from headwayd.rpc.server import RpcServer
from unit.rpc.fake_engine import FakeEngine
from unit.rpc.servers import rpc_server

OWN, NONE, HOUR = "/headway.v1.QueueService/", timedelta(0), timedelta(hours=1)
TIMEOUT_S = 30.0

Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """A server with a channel to it."""
    async with AsyncExitStack() as stack:

        async def begin(**settings: Any) -> tuple[RpcServer, str, grpc.aio.Channel]:
            server = rpc_server(FakeEngine(), **settings)
            [address] = await server.start()
            stack.push_async_callback(server.stop, NONE)
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            return server, address, channel

        yield begin


@pytest.fixture
def all_awaited(monkeypatch: pytest.MonkeyPatch) -> list[Awaited]:
    """Of each server."""
    made: list[Awaited] = []

    def make(*given: Any, **named: Any) -> Awaited:
        made.append(awaited_beside(*given, **named))
        return made[-1]

    monkeypatch.setattr("headwayd.rpc.server.awaited_beside", make)
    return made


def slow(channel: grpc.aio.Channel, method: str = OWN + "Put") -> Any:
    """A call of one request, which does not send it."""
    begin: Any = channel.stream_unary(method)
    return begin(timeout=TIMEOUT_S)


@pytest.mark.parametrize("method", [OWN + "Put", OWN + "Ack", OWN + "WatchQueue", "/grpc.health.v1.Health/Check"])
async def test_a_call_whose_request_does_not_come_in_time_is_ended(serve: Serve, method: str) -> None:
    counts = Counts(most_queues=1)
    _, _, channel = await serve(write_timeout=timedelta(seconds=0.2), counts=counts)
    with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await slow(channel, method)
    assert said.metadata == {"limit": "write_timeout"}
    assert said.retry_delay is not None
    name = method.rpartition("/")[2]
    assert counts.calls.get((name, "RESOURCE_EXHAUSTED"), 0) == method.startswith(OWN)


async def test_a_call_without_its_last_byte_is_ended_too(serve: Serve) -> None:
    _, address, _ = await serve(write_timeout=timedelta(seconds=0.2))
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = b"\x00" + (100).to_bytes(4, "big") + b"x" * 99
    call = frame(HEADERS, END_HEADERS, 1, headers(address, OWN + "Put")) + frame(DATA, 0, 1, request)
    writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b"") + call)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS and head[4] & END_STREAM:
                break
    writer.close()


async def test_a_slow_request_that_comes_in_time_is_served(serve: Serve, all_awaited: list[Awaited]) -> None:
    _, _, channel = await serve(write_timeout=HOUR)
    calls = [slow(channel, OWN + "Ack") for _ in range(20)]
    await eventually(lambda: all_awaited[0].count == 20)
    for _ in range(3):
        all_awaited[0].sweep()
    for call in calls:
        await call.write(AckRequest(queue="q", leases=["l"]).SerializeToString())
        await call.done_writing()
    await asyncio.gather(*calls)
    assert all_awaited[0].count == 0


async def test_those_that_have_waited_longest_make_room_and_others_are_served(
    serve: Serve, all_awaited: list[Awaited]
) -> None:
    _, _, channel = await serve(write_timeout=HOUR, limits=Limits(max_running_calls=ALWAYS + 20))
    calls = [slow(channel) for _ in range(ALWAYS + 20)]
    await eventually(lambda: all_awaited[0].count == ALWAYS + 20)
    all_awaited[0].sweep()
    assert not any(call.done() for call in calls)
    more = [slow(channel) for _ in range(10)]
    ended, _ = await asyncio.wait(map(asyncio.ensure_future, calls), return_when="FIRST_COMPLETED")
    error = ended.pop().exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    assert (error_of(error).reason, error_of(error).metadata) == ("OVERLOADED", {"limit": "max_running_calls"})
    await eventually(lambda: sum(call.done() for call in calls) >= 10)
    assert sum(call.done() for call in calls) == 10
    await QueueServiceStub(channel).Describe(DescribeRequest(queue="q"), timeout=TIMEOUT_S)
    assert not any(call.done() for call in more)


async def test_they_have_room_though_as_many_run_as_may(serve: Serve, all_awaited: list[Awaited]) -> None:
    """Or settling, and checks of health, would be refused."""
    _, _, channel = await serve(write_timeout=HOUR, limits=Limits(max_running_calls=1))
    calls = [slow(channel, OWN + "Ack") for _ in range(ALWAYS)]
    await eventually(lambda: all_awaited[0].count == ALWAYS)
    all_awaited[0].sweep()
    assert not any(call.done() for call in calls)


async def test_going_down_waits_for_no_request(serve: Serve, all_awaited: list[Awaited]) -> None:
    server, _, channel = await serve(write_timeout=HOUR)
    call, settling = slow(channel), slow(channel, OWN + "Ack")
    await eventually(lambda: all_awaited[0].count == 2)
    stopping = asyncio.create_task(server.stop(HOUR))
    await settling.write(AckRequest(queue="q", leases=["l"]).SerializeToString())  # that one was on its way
    await settling.done_writing()
    await settling
    with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
        await call
    await asyncio.wait_for(stopping, TIMEOUT_S)


async def test_they_are_not_taken_for_calls_that_nobody_has_accepted(
    serve: Serve, all_awaited: list[Awaited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or others' calls would be refused because of them."""
    lines: list[Line] = []
    monkeypatch.setattr("headwayd.rpc.server.Backlog", lambda line, **_: lines.append(line))
    _, _, channel = await serve(write_timeout=HOUR)
    calls = [slow(channel) for _ in range(20)]
    await eventually(lambda: all_awaited[0].count == 20)
    assert lines[0].pending_count() == 0
    for call in calls:
        call.cancel()
    await eventually(lambda: all_awaited[0].count == 0)


def test_who_is_slow_keeps_others_from_being_read_early_for_one_sweep_at_most() -> None:
    awaited = Awaited()
    calls: list[Any] = [object() for _ in range(20)]
    while awaited.may_begin_early:
        awaited.began_early(calls.pop())
    before = awaited.count
    awaited.sweep()
    assert awaited.may_begin_early
    assert awaited.count == before
