"""Fixtures of traced services: a receiver of traces, and services that send there."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import grpc.aio
import pytest
import redis

from harness import ServiceProcess, StoreServer
from harness.otlp import OtlpReceiver
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import Keys, Line

MakeLine = Callable[..., Awaitable[Line]]
# Spans are sent soon, so that tests need not wait for them.
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    """A receiver of this test's own."""
    async with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def settings(store_server: StoreServer, prefix: str) -> dict[str, str]:
    """Of services on the shared store."""
    return {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": prefix} | SOON


@pytest.fixture
async def line_on(connect: Callable[[str], grpc.aio.Channel]) -> AsyncIterator[MakeLine]:
    """Makes a queue on a service, or opens the one of this name there."""
    async with AsyncExitStack() as stack:

        async def make(service: ServiceProcess, name: str | None = None, **policy: object) -> Line:
            channel = await stack.enter_async_context(connect(service.address))
            line = Line(QueueServiceStub(channel), name or f"traced-{uuid.uuid4().hex[:8]}")
            if name is None:
                await line.create(**policy)
            return line

        yield make


@pytest.fixture
def traced(
    receiver: OtlpReceiver, make_service: Callable[..., ServiceProcess], settings: dict[str, str]
) -> ServiceProcess:
    """A service that records every job that nobody has decided about."""
    return make_service(HEADWAY_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_TRACE_RATIO="1", **settings)


@pytest.fixture
async def line(traced: ServiceProcess, line_on: MakeLine) -> Line:
    """A queue on it."""
    return await line_on(traced)


@pytest.fixture
def keys(redis_client: redis.Redis, prefix: str, line: Line) -> Keys:
    """The keys of that queue in the store."""
    return Keys(redis_client, prefix, line.name)
