"""gRPC reflection: off unless asked for, and then only for those who may call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from harness import ServiceProcess
from harness.errors import error_of, refused
from security.callers import TEAM, Metadata, write_callers
from wire.calls import SLACK_S

pytestmark = pytest.mark.any_store

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

Start = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]


async def services_of(channel: grpc.aio.Channel, metadata: Metadata = ()) -> set[str]:
    """What is told. Raises the status of the call also if that comes before the request has left (with `write` grpc.aio
    then says that it could not write)."""

    async def requests() -> AsyncIterator[bytes]:
        yield reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()

    raw: Any = channel.stream_stream(REFLECTION)
    call = raw(requests(), metadata=metadata, timeout=SLACK_S)
    answer = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
    call.cancel()
    return {service.name for service in answer.list_services_response.service}


@pytest.mark.parametrize("plain", ["false", "true"])
async def test_it_is_off_unless_it_is_asked_for(start: Start, connect: Connect, plain: str) -> None:
    async with connect(start(HEADWAY_PLAIN=plain).address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services_of(channel)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with connect(start(HEADWAY_REFLECTION="true", HEADWAY_PLAIN=plain).address) as channel:
        assert {"headway.v1.QueueService", "headway.v1.AdminService"} <= await services_of(channel)


@pytest.mark.parametrize("plain", ["false", "true"])
async def test_it_needs_credentials_where_calls_do(start: Start, connect: Connect, short_dir: Path, plain: str) -> None:
    file = write_callers(short_dir / "callers.toml", TEAM.values())
    service = start(HEADWAY_REFLECTION="true", HEADWAY_PLAIN=plain, HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services_of(channel)
        assert error_of(caught.value).reason == "UNAUTHENTICATED"
        assert "headway.v1.QueueService" in await services_of(channel, TEAM["producer"].metadata)


@pytest.mark.parametrize("plain", ["false", "true"])
async def test_a_stream_of_it_ends_when_the_service_goes_down(start: Start, connect: Connect, plain: str) -> None:
    service = start(HEADWAY_REFLECTION="true", HEADWAY_PLAIN=plain)
    async with connect(service.address) as channel:
        raw: Any = channel.stream_stream(REFLECTION)
        stream = raw(timeout=SLACK_S)
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        await stream.read()
        service.signal(signal.SIGTERM)
        with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
            await stream.read()
        assert await asyncio.to_thread(service.wait) == 0
