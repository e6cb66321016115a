"""How a service starts, says that it serves, and goes: on a store that is there or not, with callers waiting."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness import FaultProxy, ServiceProcess, StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, admin_service_pb2_grpc, queue_service_pb2, queue_service_pb2_grpc

pytestmark = [pytest.mark.any_store, pytest.mark.true_start]

MakeService = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]
Health = health_pb2.HealthCheckResponse


def check(address: str, *flags: str) -> int:
    """The exit code of `headwayd check`."""
    program = str(Path(sys.executable).with_name("headwayd"))
    command = [program, "check", *flags, address]
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode


async def wait_for_a_message(
    channel: grpc.aio.Channel, queue: str
) -> "grpc.aio.UnaryUnaryCall[queue_service_pb2.GetRequest, queue_service_pb2.GetResponse]":
    """A Get that stands and waits, seen by the service."""
    stub = queue_service_pb2_grpc.QueueServiceStub(channel)
    await stub.Create(queue_service_pb2.CreateRequest(queue=queue), timeout=5)
    call = stub.Get(queue_service_pb2.GetRequest(queue=queue, wait=Duration(seconds=60)), timeout=60)

    async def is_waiting() -> bool:
        described = await stub.Describe(queue_service_pb2.DescribeRequest(queue=queue), timeout=5)
        return described.queue.counts.consumers_waiting == 1

    await eventually(is_waiting)
    return call


async def test_a_stopping_service_ends_waits_and_leaves_with_0(make_service: MakeService, connect: Connect) -> None:
    service = make_service()
    assert check(service.address) == 0
    async with connect(service.address) as channel:
        call = await wait_for_a_message(channel, "waiting")
        service.signal(signal.SIGTERM)
        with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
            await call
    assert service.wait(within=10) == 0
    assert check(service.address) == 1


async def test_the_shut_down_goes_in_order(make_service: MakeService) -> None:
    service = make_service(HEADWAY_LOG_FORMAT="json")
    service.stop()
    order = [
        "say NOT_SERVING",
        "drain delay",
        "give up the places of HTTP connections",
        "end waits",
        "stop taking calls",
        "close the HTTP port",
        "stop background work",
        "close the store",
        "stop the embedded store",
        "send the last metrics",
        "flush the log",
    ]
    text = service.log.read_text()
    places = [text.find(f'"step": "{step}') for step in order]
    assert places == sorted(places)
    assert -1 not in places


async def test_health_says_not_serving_during_the_drain_delay_and_a_second_signal_ends_it(
    make_service: MakeService, connect: Connect
) -> None:
    service = make_service(HEADWAY_DRAIN_DELAY="60s")
    async with connect(service.address) as channel:
        service.signal(signal.SIGTERM)
        await eventually(lambda: check(service.address) == 1)
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        await stub.Create(queue_service_pb2.CreateRequest(queue="still-served"), timeout=5)
    service.signal(signal.SIGINT)
    assert service.wait(within=10) == 0


async def test_a_store_that_is_down_at_the_start_is_waited_for_while_serving(
    make_service: MakeService, connect: Connect, fresh_store_server: StoreServer
) -> None:
    fresh_store_server.stop()
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    assert service.store.endswith("not reachable yet")
    async with connect(service.address) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        with refused("STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE):
            await stub.Create(queue_service_pb2.CreateRequest(queue="patient"), timeout=5)
        fresh_store_server.start()

        async def created() -> bool:
            try:
                await stub.Create(queue_service_pb2.CreateRequest(queue="patient"), timeout=5)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                return False
            return True

        await eventually(created, within=1.0)


@pytest.mark.long
async def test_readiness_follows_the_store_and_nothing_else_does(
    make_service: MakeService, connect: Connect, fresh_store_server: StoreServer
) -> None:
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    async with connect(service.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio

        async def serving() -> set[str]:
            names = ("", "headway.v1.QueueService", "headway.v1.AdminService", "liveness", "readiness")
            asked = [health.Check(health_pb2.HealthCheckRequest(service=name), timeout=2) for name in names]
            statuses = [(await one).status for one in asked]
            return {name for name, status in zip(names, statuses, strict=True) if status == Health.SERVING}

        async def follows() -> bool:
            return await serving() == expected

        expected = everything = await serving()
        assert "readiness" in everything
        assert await asyncio.to_thread(check, service.address, "--ready") == 0
        fresh_store_server.pause()
        expected = everything - {"readiness"}
        await eventually(follows, within=10)
        assert await asyncio.to_thread(check, service.address, "--ready") == 1
        assert await asyncio.to_thread(check, service.address) == 0
        fresh_store_server.resume()
        expected = everything
        await eventually(follows, within=10)


async def test_a_named_store_is_never_replaced_by_the_embedded_one(make_service: MakeService, short_dir: Path) -> None:
    folder = short_dir / "untouched"
    service = make_service(REDIS_PORT="1", HEADWAY_DATA_DIR=str(folder))
    assert "localhost:1" in service.store
    assert not folder.exists()


async def test_a_service_knows_its_store_by_any_of_its_names(
    make_service: MakeService, connect: Connect, store_server: StoreServer
) -> None:
    ways = [
        {"HEADWAY_REDIS_URL": store_server.url},
        {"HEADWAY_REDIS_URL": store_server.unix_url},
        {"REDIS_SERVER": "127.0.0.1", "REDIS_PORT": str(store_server.port)},
    ]
    for way in ways:
        service = make_service(PRESSURE_PREFIX="__by_name__", **way)
        async with connect(service.address) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            told = await admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)
        assert (told.store.kind, told.store.embedded, told.store.prefix) == (store_server.kind, False, "__by_name__")
        service.stop()


async def test_it_serves_on_several_addresses_unix_sockets_too(make_service: MakeService, short_dir: Path) -> None:
    service = make_service(HEADWAY_LISTEN=f"127.0.0.1:0,unix:{short_dir}/h.sock")
    assert service.addresses[1] == f"unix:{short_dir}/h.sock"
    assert [check(address) for address in service.addresses] == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads connections over sockets of one address")
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"HEADWAY_ACCEPTORS": "1"}, 1),
        ({"HEADWAY_ACCEPTORS": "7"}, 7),
        ({"HEADWAY_ACCEPTORS": "4", "HEADWAY_PLAIN": "true"}, 4),
        ({"HEADWAY_ACCEPTORS": "4", "HEADWAY_MAX_CONNECTIONS": "500"}, 2),
    ],
    ids=["default", "one", "seven", "plain", "few-connections"],
)
async def test_calls_are_accepted_by_as_many_as_are_set(
    make_service: MakeService, settings: dict[str, str], count: int
) -> None:
    service = make_service(**settings)
    port = int(service.address.rpartition(":")[2])
    found = psutil.Process(service.pid).net_connections("tcp")
    assert sum(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found) == count
    assert all(check(service.address) == 0 for _ in range(3))


async def test_a_stop_while_the_store_is_silent_is_bounded(
    make_service: MakeService, connect: Connect, store_server: StoreServer
) -> None:
    async with FaultProxy(store_server.port) as proxy:
        service = make_service(HEADWAY_REDIS_URL=proxy.url, PRESSURE_PREFIX="__silent__", start=False)
        await asyncio.to_thread(service.start)
        async with connect(service.address) as channel:
            call = await wait_for_a_message(channel, "stuck")
            proxy.silent = True
            service.signal(signal.SIGTERM)
            assert await asyncio.to_thread(service.wait, within=15) == 0
            assert call.done() or await call.code() is grpc.StatusCode.UNAVAILABLE
