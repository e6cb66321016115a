"""The server's life: listening, health, draining, cancellation, and an end that waits for its handlers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from harness import eventually
from harness.errors import refused
from headway.v1 import queue_service_pb2_grpc
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import (
    AckRequest,
    DelayRequest,
    DescribeRequest,
    ExtendRequest,
    GetRequest,
    ListRequest,
    PutRequest,
)
from headwayd.domain.limits import Limits
from headwayd.rpc.backlog import BUSY, LONG, Line
from headwayd.rpc.beside import MOST_OF_A_CONNECTION
from headwayd.rpc.books import Books
from headwayd.rpc.health import LIVENESS, READINESS
from headwayd.rpc.health_check import check
from headwayd.rpc.own_core import OwnCore
from headwayd.rpc.server import RpcServer
from headwayd.sockets import CannotListen
from unit.rpc.fake_engine import FakeEngine
from unit.rpc.servers import rpc_server

QueueStub: TypeAlias = "queue_service_pb2_grpc.QueueServiceAsyncStub"
SECOND = timedelta(seconds=1)
NONE = timedelta(0)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
Health = health_pb2.HealthCheckResponse


def serving_on(*listen: str) -> RpcServer:
    return rpc_server(FakeEngine(), listen=listen)


# -- listening --------------------------------------------------------------------------------------------------------


async def test_listens_on_every_address_and_tells_the_real_ports(short_dir: Path) -> None:
    unix = f"unix:{short_dir}/s"
    listen = ["127.0.0.1:0", unix]
    if socket.has_ipv6:
        listen.append("[::1]:0")
    server = serving_on(*listen)
    bound = await server.start()
    assert [address.rpartition(":")[0] for address in bound] == [a.rpartition(":")[0] for a in listen]
    assert all(not address.endswith(":0") for address in bound)
    server.set_serving(True)
    for address in bound:
        assert await check(address, SECOND)
    await server.stop(NONE)
    for address in bound:
        assert not await check(address, timedelta(milliseconds=200))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.0.0.1:",
        ":7420",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:http",
        "::1:7420",
        "",
        "unix:",
        "unix:/" + "x" * 107,
        "unix:/nonexistent/folder/s",
        "host.invalid:0",
        "192.0.2.1:0",
    ],
)
async def test_what_is_no_address_is_refused(address: str) -> None:
    server = serving_on(address)
    with pytest.raises(CannotListen, match="cannot listen on"):
        await server.start()


async def test_a_taken_port_is_refused_and_nothing_stays_open(short_dir: Path) -> None:
    first = serving_on("127.0.0.1:0")
    (address,) = await first.start()
    first.set_serving(True)
    second = serving_on(f"unix:{short_dir}/s", address)
    with pytest.raises(CannotListen, match="taken"):
        await second.start()
    assert await check(address, SECOND)
    assert not await check(f"unix:{short_dir}/s", timedelta(milliseconds=200))
    await first.stop(NONE)


async def test_a_served_unix_socket_is_not_taken_away_and_a_left_one_is_replaced(short_dir: Path) -> None:
    address = f"unix:{short_dir}/s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{short_dir}/s")
    first = serving_on(address)
    assert await first.start() == [address]
    first.set_serving(True)
    with pytest.raises(CannotListen, match="another process serves there"):
        await serving_on(address).start()
    assert await check(address, SECOND)
    await first.stop(NONE)


async def test_a_file_is_not_replaced_by_a_socket(short_dir: Path) -> None:
    (short_dir / "s").write_text("precious")
    with pytest.raises(CannotListen, match="no socket"):
        await serving_on(f"unix:{short_dir}/s").start()
    assert (short_dir / "s").read_text() == "precious"


# -- health -----------------------------------------------------------------------------------------------------------


def health_call(channel: grpc.aio.Channel, service: str) -> Any:
    call: Any = channel.unary_unary("/grpc.health.v1.Health/Check", response_deserializer=Health.FromString)
    return call(health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=5)


@pytest.mark.parametrize("service", ["", "headway.v1.QueueService", "headway.v1.AdminService"])
async def test_health_follows_what_it_is_told(service: str, server: RpcServer, channel: grpc.aio.Channel) -> None:
    assert (await health_call(channel, service)).status == Health.NOT_SERVING
    server.set_serving(True)
    assert (await health_call(channel, service)).status == Health.SERVING
    server.set_serving(False)
    assert (await health_call(channel, service)).status == Health.NOT_SERVING


async def test_readiness_needs_the_process_and_the_store(server: RpcServer, channel: grpc.aio.Channel) -> None:
    for is_serving, is_ready in itertools.product((False, True), repeat=2):
        server.set_serving(is_serving)
        server.set_ready(is_ready)
        expected = Health.SERVING if is_serving and is_ready else Health.NOT_SERVING
        assert (await health_call(channel, READINESS)).status == expected
        assert (await health_call(channel, "")).status == (Health.SERVING if is_serving else Health.NOT_SERVING)


async def test_liveness_does_not_mind_the_store_nor_a_shut_down(server: RpcServer, channel: grpc.aio.Channel) -> None:
    for is_serving in (True, False):
        server.set_serving(is_serving)
        server.set_ready(False)
        assert (await health_call(channel, LIVENESS)).status == Health.SERVING


async def test_health_of_an_unknown_service_is_not_found(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_call(channel, "other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_of_health_outlive_each_other_and_end_with_the_server(
    server: RpcServer, channel: grpc.aio.Channel
) -> None:
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", response_deserializer=Health.FromString)
    first, second, unknown = (
        watch(health_pb2.HealthCheckRequest(service=name).SerializeToString(), timeout=10) for name in ("", "", "other")
    )
    assert (await first.read()).status == (await second.read()).status == Health.NOT_SERVING
    assert (await unknown.read()).status == Health.SERVICE_UNKNOWN
    first.cancel()
    server.set_serving(True)
    assert (await second.read()).status == Health.SERVING
    last = asyncio.ensure_future(second.read())
    await asyncio.sleep(0.1)  # the read has begun: one that begins after the stream's end finds nothing
    async with asyncio.timeout(5):
        await server.stop(timedelta(seconds=30))
    assert (await last).status == Health.NOT_SERVING
    assert await second.code() is grpc.StatusCode.OK


def health_watch(channel: grpc.aio.Channel) -> Any:
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", response_deserializer=Health.FromString)
    return watch(health_pb2.HealthCheckRequest(service="any").SerializeToString(), timeout=30)


def reflecting(channel: grpc.aio.Channel, *, asks: bool = True) -> Any:
    """Who is refused while it sends may be told so by its own library, in other words: `asks` says whether it does."""

    async def requests() -> AsyncIterator[bytes]:
        if asks:
            yield reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        await asyncio.Event().wait()

    call: Any = channel.stream_stream(REFLECTION)
    return call(requests(), timeout=30)


@pytest.fixture(params=[False, True], ids=["own", "plain"])
async def small(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a server on which 20 calls may run: two streams beside them."""
    engine = FakeEngine(hold=asyncio.Event())
    server = rpc_server(engine, limits=Limits(max_running_calls=20), is_plain=request.param, has_reflection=True)
    [address] = await server.start()
    yield address
    await server.stop(NONE)


async def test_streams_that_are_no_calls_have_a_bound_and_health_is_checked_beyond_it(small: str) -> None:
    async with grpc.aio.insecure_channel(small) as channel:
        first, second = health_watch(channel), reflecting(channel)
        for open_one in (first, second):
            await open_one.read()
        for _ in range(3):
            with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
                await health_watch(channel).read()
            assert said.metadata == {"limit": "max_running_calls"}
            assert said.retry_delay is not None
            assert await _code(reflecting(channel, asks=False)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await health_call(channel, "")).status == Health.NOT_SERVING
        for gone in (first, second):
            gone.cancel()

            async def another() -> bool:
                try:
                    await health_watch(channel).read()
                except grpc.aio.AioRpcError:
                    return False
                return True

            await eventually(another)


async def test_streams_that_are_no_calls_take_their_room(small: str) -> None:
    async with grpc.aio.insecure_channel(small) as channel:
        watches = [health_watch(channel) for _ in range(2)]
        for watch in watches:
            await watch.read()
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        waiting = [stub.Get(GetRequest(queue="q"), timeout=30) for _ in range(19)]
        ended, _ = await asyncio.wait(map(asyncio.ensure_future, map(_code, waiting)), return_when="FIRST_COMPLETED")
        assert [each.result() for each in ended] == [grpc.StatusCode.RESOURCE_EXHAUSTED]


async def _code(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


async def test_going_down_waits_for_nobody_who_reads_the_schema() -> None:
    server = rpc_server(FakeEngine(), has_reflection=True)
    [address] = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(REFLECTION)
        stream = call(timeout=30)
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        await stream.read()
        server.start_draining()
        later = call(timeout=30)
        for each in (stream, later):
            with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
                while await each.read() is not grpc.aio.EOF:
                    pass
        await asyncio.wait_for(server.stop(timedelta(hours=1)), 30)


async def test_one_connection_has_its_share_of_streams_that_are_no_calls(
    server: RpcServer, channel: grpc.aio.Channel, address: str
) -> None:
    watches = [health_watch(channel) for _ in range(MOST_OF_A_CONNECTION)]
    for watch in watches:
        await watch.read()
    with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await health_watch(channel).read()
    assert said.metadata == {}
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
        assert (await health_watch(other).read()).status == Health.SERVICE_UNKNOWN


async def test_who_watches_health_is_no_call_that_waits_to_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or others' calls would be refused because of them."""
    lines: list[Line] = []
    monkeypatch.setattr("headwayd.rpc.server.Backlog", lambda line, **_: lines.append(line))
    server = serving_on("127.0.0.1:0")
    [address] = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        watches = [health_watch(channel) for _ in range(5)]
        for watch in watches:
            await watch.read()
        assert lines[0].pending_count() == 0
    await server.stop(NONE)


async def test_check_is_false_where_nobody_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not await check(f"127.0.0.1:{silent.getsockname()[1]}", timedelta(milliseconds=100))


# -- handlers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def holding(engine: FakeEngine) -> FakeEngine:
    """The engine, with every operation waiting for `hold`."""
    engine.hold = asyncio.Event()
    return engine


async def wait_until_idle(server: RpcServer) -> None:
    async with asyncio.timeout(5):
        while server.running_count:  # noqa: ASYNC110 - nothing signals it to the outside
            await asyncio.sleep(0.001)


async def test_a_cancelled_call_is_cancelled_in_the_engine(
    server: RpcServer, stub: QueueStub, holding: FakeEngine
) -> None:
    call = stub.Get(GetRequest(queue="q"))
    await asyncio.wait_for(holding.started.wait(), 5)
    assert server.running_count == 1
    call.cancel()
    await asyncio.wait_for(holding.cancelled.wait(), 5)
    await wait_until_idle(server)


async def test_a_lost_connection_cancels_in_the_engine(server: RpcServer, address: str, holding: FakeEngine) -> None:
    channel = grpc.aio.insecure_channel(address)
    call = queue_service_pb2_grpc.QueueServiceStub(channel).Get(GetRequest(queue="q"))
    await asyncio.wait_for(holding.started.wait(), 5)
    await channel.close()
    await asyncio.wait_for(holding.cancelled.wait(), 5)
    await wait_until_idle(server)
    assert call.done()


async def test_a_deadline_that_passes_cancels_in_the_engine(
    server: RpcServer, stub: QueueStub, holding: FakeEngine
) -> None:
    while not holding.started.is_set():  # where the machine stalls it passes before that
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(GetRequest(queue="q"), timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(holding.cancelled.wait(), 5)
    await wait_until_idle(server)


async def test_draining_refuses_new_work_and_still_settles(
    server: RpcServer, stub: QueueStub, engine: FakeEngine
) -> None:
    server.start_draining()
    for call in (
        stub.Put(PutRequest(queue="q", messages=[Message()]), timeout=5),
        stub.Get(GetRequest(queue="q", ack=["l"]), timeout=5),
        stub.Describe(DescribeRequest(queue="q"), timeout=5),
        stub.List(ListRequest(), timeout=5),
    ):
        with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE) as said:
            await call
        assert said.retry_delay is not None
    assert engine.calls == []
    await stub.Ack(AckRequest(queue="q", leases=["l"]), timeout=5)
    await stub.Delay(DelayRequest(queue="q", leases=["l"]), timeout=5)
    await stub.Extend(ExtendRequest(queue="q", leases=["l"]), timeout=5)
    assert [operation for operation, _ in engine.calls] == ["ack", "delay", "extend"]


async def test_draining_lets_running_calls_end(server: RpcServer, stub: QueueStub, holding: FakeEngine) -> None:
    call = stub.Get(GetRequest(queue="q"), timeout=10)
    await asyncio.wait_for(holding.started.wait(), 5)
    stopping = asyncio.create_task(server.stop(timedelta(seconds=10)))
    await asyncio.sleep(0)
    assert holding.hold is not None
    holding.hold.set()
    await call
    await stopping
    assert server.running_count == 0


async def test_stop_waits_for_the_clean_up_of_handlers_it_cancelled(
    server: RpcServer, stub: QueueStub, holding: FakeEngine
) -> None:
    holding.cleaned_up_after_s = 0.3
    call = stub.Get(GetRequest(queue="q"), timeout=10)
    await asyncio.wait_for(holding.started.wait(), 5)
    await server.stop(NONE)
    assert holding.cancelled.is_set()
    assert server.running_count == 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_stop_may_come_before_start_and_twice(server: RpcServer) -> None:
    await server.stop(NONE)
    await server.stop(NONE)


class TestOverload:
    @pytest.fixture
    async def server(self, engine: FakeEngine) -> AsyncIterator[RpcServer]:
        server = rpc_server(engine, limits=Limits(max_running_calls=2))
        yield server
        await server.stop(NONE)

    async def test_more_calls_than_allowed_are_refused_and_settling_is_not(
        self, server: RpcServer, stub: QueueStub, holding: FakeEngine
    ) -> None:
        waiting = [stub.Get(GetRequest(queue="q"), timeout=10) for _ in range(2)]
        async with asyncio.timeout(5):
            while server.running_count < 2:  # noqa: ASYNC110 - nothing signals it to the outside
                await asyncio.sleep(0.001)
        with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
            await stub.Get(GetRequest(queue="q"), timeout=5)
        assert said.retry_delay is not None
        settling = stub.Ack(AckRequest(queue="q", leases=["l"]), timeout=5)
        await asyncio.sleep(0)
        assert holding.hold is not None
        holding.hold.set()
        assert len((await settling).results) == 1
        for call in waiting:
            await call
        await wait_until_idle(server)
        await stub.Get(GetRequest(queue="q"), timeout=5)


# -- overload ---------------------------------------------------------------------------------------------------------


async def test_while_more_calls_come_than_it_serves_the_event_loops_core_is_kept_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = asyncio.Event()
    monkeypatch.setattr(OwnCore, "keep_clear", lambda _: kept.set())
    monkeypatch.setattr(Books, "pending_count", lambda _: LONG)
    server = rpc_server(FakeEngine(hold=asyncio.Event()))
    [address] = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)

        async def come() -> bool:
            calls = (stub.Describe(DescribeRequest(queue="jobs"), timeout=0.2) for _ in range(3 * BUSY))
            await asyncio.gather(*calls, return_exceptions=True)  # all at a time
            return kept.is_set()

        await eventually(come, within=20)
    await server.stop(NONE)
