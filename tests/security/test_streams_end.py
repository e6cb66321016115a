"""Streams whose caller may not any more end, within a minute, and give back what they had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import ServiceProcess, eventually
from harness.errors import WireError, error_of
from headway.v1 import queue_service_pb2
from security.callers import Caller, line_of, short_lived, write_callers
from security.issuer import AUDIENCE, ISSUER, SigningKey, dripping_server, key_set
from wire.calls import Line, message

pytestmark = pytest.mark.any_store

Start = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]
ADMIN = Caller(roles=("admin",), namespace="team")
STREAMS = ("WatchPosition", "WatchPosition of messages", "WatchQueue", "Produce", "Consume")
PATIENCE_S = 60.0


async def open_stream(kind: str, line: Line) -> Any:
    """A stream that has begun, and has nothing to end it."""
    call: Any
    match kind:
        case "WatchPosition":
            stand = queue_service_pb2.Stand(keep_standing=True)
            call = line.stub.WatchPosition(queue_service_pb2.WatchPositionRequest(queue=line.name, stand=stand))
        case "WatchPosition of messages":
            ids = queue_service_pb2.MessageIds(ids=["watched"])
            call = line.stub.WatchPosition(queue_service_pb2.WatchPositionRequest(queue=line.name, messages=ids))
        case "WatchQueue":
            call = line.stub.WatchQueue(queue_service_pb2.WatchQueueRequest(queue=line.name))
        case "Produce":
            call = line.stub.Produce()
            await call.write(queue_service_pb2.ProduceRequest(queue=line.name, messages=[message(b"x")], batch=1))
        case "Consume":
            call = line.stub.Consume()
            start = queue_service_pb2.ConsumeStart(queue=line.name, credit=queue_service_pb2.Credit(messages=1))
            await call.write(queue_service_pb2.ConsumeRequest(start=start))
    assert await call.read() is not grpc.aio.EOF
    return call


async def end_of(call: Any) -> WireError:
    """How a stream ends."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    raise AssertionError("it ended well")


async def made(channel: grpc.aio.Channel, name: str) -> Line:
    """A queue with a message, as its admin sees it."""
    admin = line_of(channel, ADMIN, name)
    await admin.create()
    first = message(b"held")
    first.id = "watched"
    await admin.put(first)
    return admin


async def begin(kind: str, channel: grpc.aio.Channel, name: str, caller: Caller) -> Any:
    await made(channel, name)
    return await open_stream(kind, line_of(channel, caller, name))


@pytest.mark.long
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_ends_when_its_token_expires(
    start: Start, connect: Connect, short_dir: Path, name: str, kind: str
) -> None:
    file = write_callers(short_dir / "callers.toml", [ADMIN])
    service = start(HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        caller = await short_lived(file, [ADMIN], await made(channel, name), channel)
        began_at = time.monotonic()
        said = await end_of(await open_stream(kind, line_of(channel, caller, name)))
        assert (said.code, said.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert time.monotonic() - began_at < PATIENCE_S

        async def nothing_is_leased() -> bool:
            return (await line_of(channel, ADMIN, name).describe()).counts.leased == 0

        await eventually(nothing_is_leased)


async def test_keys_that_come_slowly_hold_up_neither_a_stream_that_is_to_end_nor_the_end_of_the_process(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    gone = Caller(roles=("admin",), namespace="team")
    file = write_callers(short_dir / "callers.toml", [ADMIN, gone])
    with dripping_server() as issuer:
        env = {"HEADWAY_JWT_JWKS": issuer.url, "HEADWAY_JWT_ISSUER": ISSUER, "HEADWAY_JWT_AUDIENCE": AUDIENCE}
        service = start(HEADWAY_AUTH_FILE=str(file), **env)
        async with connect(service.address) as channel:
            call = await begin("WatchQueue", channel, name, gone)
            await eventually(lambda: issuer.asked > 0)
            write_callers(file, [ADMIN])
            assert (await asyncio.wait_for(end_of(call), PATIENCE_S / 4)).reason == "UNAUTHENTICATED"
        ending = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - ending < PATIENCE_S / 4


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_ends_when_its_token_is_taken_back_or_means_less(
    start: Start, connect: Connect, short_dir: Path, name: str, kind: str
) -> None:
    gone, less, same = (Caller(roles=("admin",), namespace="team") for _ in range(3))
    file = write_callers(short_dir / "callers.toml", [ADMIN, gone, less, same])
    service = start(HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        calls = [await begin(kind, channel, f"{name}-{at}", who) for at, who in enumerate((gone, less, same))]
        fewer = Caller(roles=("producer",), namespace="team", token=less.token)
        write_callers(file, [ADMIN, fewer, same])
        assert (await end_of(calls[0])).reason == "UNAUTHENTICATED"
        assert (await end_of(calls[1])).reason == "PERMISSION_DENIED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await line_of(channel, gone, name).describe()
        assert error_of(caught.value).reason == "UNAUTHENTICATED"
        assert not calls[2].done()
        calls[2].cancel()


async def test_a_stream_ends_when_the_key_of_its_token_is_taken_back(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    key, other = SigningKey(), SigningKey("other")
    keys = short_dir / "keys.json"
    keys.write_text(key_set(key, other))
    service = start(
        HEADWAY_JWT_JWKS=str(keys), HEADWAY_JWT_ISSUER=ISSUER,
        HEADWAY_JWT_AUDIENCE=AUDIENCE, HEADWAY_JWT_NAMESPACE_CLAIM="ns",
    )  # fmt: skip
    caller, keeper = (Caller(roles=(), namespace="team", token=each.token(ns="team")) for each in (key, other))
    async with connect(service.address) as channel:
        line = line_of(channel, keeper, name)
        await line.create()
        call = await open_stream("WatchQueue", line_of(channel, caller, name))
        keys.write_text(key_set(other))
        assert (await end_of(call)).reason == "UNAUTHENTICATED"
        await line.describe()


async def test_a_token_that_was_served_is_refused_once_it_has_expired(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    """Who was found is remembered, but no longer than that."""
    key, keys = SigningKey(), short_dir / "keys.json"
    keys.write_text(key_set(key))
    service = start(
        HEADWAY_JWT_JWKS=str(keys), HEADWAY_JWT_ISSUER=ISSUER, HEADWAY_JWT_AUDIENCE=AUDIENCE
    )  # fmt: skip
    async with connect(service.address) as channel:
        keeper = Caller(roles=(), token=key.token())
        await line_of(channel, keeper, name).create()
        # Clocks may differ by 10 s, so it holds for some seconds yet.
        line = line_of(channel, Caller(roles=(), token=key.token(exp=time.time() - 6)), name)
        await line.describe()

        async def is_refused() -> bool:
            try:
                await line.describe()
            except grpc.aio.AioRpcError as error:
                assert error_of(error).reason == "UNAUTHENTICATED"
                return True
            return False

        await eventually(is_refused, within=30)
