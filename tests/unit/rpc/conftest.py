"""A real server on loopback with a fake engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc.aio
import pytest

from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from headwayd.rpc.core import pacing
from headwayd.rpc.server import RpcServer
from unit.rpc.fake_engine import FakeEngine
from unit.rpc.scheduler import Scheduler
from unit.rpc.servers import rpc_server


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def server(engine: FakeEngine) -> AsyncIterator[RpcServer]:
    server = rpc_server(engine)
    yield server
    await server.stop(timedelta(0))


@pytest.fixture
async def address(server: RpcServer) -> str:
    (address,) = await server.start()
    return address


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> queue_service_pb2_grpc.QueueServiceAsyncStub:
    return queue_service_pb2_grpc.QueueServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> admin_service_pb2_grpc.AdminServiceAsyncStub:
    return admin_service_pb2_grpc.AdminServiceStub(channel)


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """What this process hears of its thread."""
    file = tmp_path / "schedstat"
    monkeypatch.setattr(pacing, "_SCHEDSTAT", file)
    return Scheduler(file)
