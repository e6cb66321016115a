"""The store is slow, or far away: no answer takes too long by itself, and nothing fails because it needs several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.conftest import Connect, Open, Serve
from faults.moments import works
from faults.wires import ReplyProxy
from harness import StoreServer, eventually
from harness.stores import free_port
from headwayd.domain.errors import StoreUnavailable
from headwayd.store.address import parse_address
from headwayd.store.cluster import Cluster
from headwayd.store.connections import ConnectionSource
from headwayd.store.hint_wire import HintWire
from headwayd.store.redis_store import RedisStore
from wire.calls import UNAVAILABLE

pytestmark = pytest.mark.any_store

TIMEOUT_S = 1.0
WITHIN_S = 20.0  # each try takes seconds, and on a busy machine one may fail


async def test_a_slow_store_is_found_and_looked_at(proxy: ReplyProxy) -> None:
    proxy.late_s = 0.4

    async def is_found() -> bool:
        store = RedisStore(
            proxy.url, prefix="p", process="headway/slow/1/0", embedded=False, call_timeout=timedelta(seconds=TIMEOUT_S)
        )
        try:
            await store.start()
            await store.probe(budget_s=TIMEOUT_S)  # over a connection that stands
        except StoreUnavailable:
            return False
        finally:
            await store.close()
        return store.facts.is_reachable

    await eventually(is_found, within=WITHIN_S)


async def test_a_slow_store_is_written_to_and_counted_on(
    proxy: ReplyProxy, serve: Serve, open_line: Open, connect: Connect
) -> None:
    proxy.late_s = 0.3
    service = await serve(proxy.url, HEADWAY_DURABILITY="everysec")
    line = await open_line(service, "jobs")

    async def is_made() -> bool:
        try:
            await line.create()
        except grpc.aio.AioRpcError as error:
            assert error.code() is UNAVAILABLE, error
            return False
        return True

    await eventually(is_made, within=WITHIN_S)
    await eventually(lambda: works(line), within=WITHIN_S)
    async with connect(service.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio

        async def is_ready() -> bool:
            answer = await health.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=5)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        await eventually(is_ready, within=WITHIN_S)


async def test_a_slow_store_is_heard(proxy: ReplyProxy) -> None:
    proxy.late_s = 0.5
    wire = HintWire(
        ConnectionSource(parse_address(proxy.url), call_timeout_s=TIMEOUT_S),
        channels=(b"wake", b"due"),
        call_timeout_s=TIMEOUT_S,
        on_message=lambda _channel, _content: None,
        on_connected=lambda: None,
    )
    wire.start()
    try:
        async with asyncio.timeout(WITHIN_S):
            await wire.connected()
    finally:
        await wire.close()


async def test_a_slow_cluster_is_found(make_store_server: Callable[..., StoreServer]) -> None:
    node = make_store_server("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with node.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), within=WITHIN_S)
    async with ReplyProxy(node.port) as proxy:
        proxy.late_s = 0.4
        address = parse_address(f"redis+cluster://127.0.0.1:{proxy.port}")
        cluster = Cluster(address, call_timeout_s=TIMEOUT_S, min_replicas=0, password_file=None)
        try:
            await cluster.start(wait_s=WITHIN_S)
            assert len(cluster.links) == 1
        finally:
            await cluster.close()
