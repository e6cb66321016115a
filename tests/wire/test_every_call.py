"""What holds for every served call: names, broken requests, callers that vanish."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, queue_service_pb2, queue_service_pb2_grpc
from properties.hostile import COLLIDING, IMPROPER, PROPER_AND_HARMLESS
from wire.calls import INVALID_ARGUMENT, SLACK_S, Keys, Line, Message, assert_balanced, payloads
from wire.every_call import ADMIN_SERVICE, BOTH_WAYS, ENDLESS, QUEUE_SERVICE, REQUESTS, WITHOUT_QUEUE, short

MARKER = "MARKER"


@pytest.fixture(scope="module")
def own_service(store_server: StoreServer, new_folder: Callable[[str], Path]) -> Iterator[ServiceProcess]:
    """A service under a prefix of its own: these names cannot be made unique."""
    env = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": f"p{uuid.uuid4().hex[:8]}"}
    process = ServiceProcess(new_folder("names"), env=env)
    try:
        yield process.start()
    finally:
        process.stop()


async def call_raw(channel: grpc.aio.Channel, method: str, request: bytes, timeout: float | None = SLACK_S) -> bytes:
    """A call whose request is these very bytes."""
    if method in ENDLESS:
        stream: Any = channel.unary_stream(method)
        call = stream(request, timeout=timeout)
        first: bytes = await call.read()
        call.cancel()
        return first
    raw: Any = channel.unary_unary(method)
    answer: bytes = await raw(request, timeout=timeout)
    return answer


def test_the_table_of_calls_has_every_call_of_the_schema() -> None:
    described = {
        f"/{service.full_name}/{method.name}"
        for file in (queue_service_pb2, admin_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described == set(REQUESTS) | WITHOUT_QUEUE | BOTH_WAYS


@pytest.mark.any_store
@pytest.mark.parametrize("method", REQUESTS, ids=short)
@pytest.mark.parametrize("name", [*IMPROPER, *COLLIDING[::6], COLLIDING[-1]], ids=ascii)
async def test_a_name_that_is_no_name_is_refused_by_every_call(
    channel: grpc.aio.Channel, method: str, name: str
) -> None:
    with refused("NAME_REFUSED", INVALID_ARGUMENT) as said:
        await call_raw(channel, method, REQUESTS[method](name).SerializeToString())
    assert said.metadata == {"field": "queue"}
    assert list(said.violations) == ["queue"]
    assert said.violations["queue"]
    assert said.domain == "headway.v1"


@pytest.mark.any_store
@pytest.mark.parametrize("bad", [b"\xff\xfe", b"a\xed\xa0\x80", b"\xc0\xaf", b"a\x80"], ids=repr)
@pytest.mark.parametrize("method", REQUESTS, ids=short)
async def test_a_name_that_is_not_utf8_is_refused_by_every_call(
    channel: grpc.aio.Channel, method: str, bad: bytes
) -> None:
    sound = REQUESTS[method](MARKER[: len(bad)]).SerializeToString()
    broken = sound.replace(MARKER[: len(bad)].encode(), bad, 1)
    assert broken != sound
    with refused("NAME_REFUSED", INVALID_ARGUMENT) as said:
        await call_raw(channel, method, broken)
    assert said.metadata == {"field": "queue"}
    assert list(said.violations) == ["queue"]


@pytest.mark.any_store
@pytest.mark.parametrize("method", [*REQUESTS, *sorted(WITHOUT_QUEUE)], ids=short)
async def test_bytes_that_are_no_request_are_refused_by_every_call(channel: grpc.aio.Channel, method: str) -> None:
    for broken in (b"\x0a\xff\x01short", b"\x0a", b"\xff" * 40):
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await call_raw(channel, method, broken)
        assert said.violations


@pytest.mark.parametrize(
    "name", [*PROPER_AND_HARMLESS, "a:b\u2028c", "P:q:bound ", "\\", "\u202e:closed:x-"], ids=ascii
)
async def test_a_harmless_name_is_a_queue_like_any_other(
    own_service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel], name: str
) -> None:
    async with connect(own_service.address) as channel:
        line = Line(queue_service_pb2_grpc.QueueServiceStub(channel), name)
        assert (await line.create(bound=2)).queue.name == name
        try:
            await line.put(name.encode(), Message(id="two", payload=b"two"))
            answer = await line.stub.List(queue_service_pb2.ListRequest(prefix=name), timeout=SLACK_S)
            assert name in [queue.name for queue in answer.queues]
            first = await line.take_one()
            assert first.message.payload == name.encode()
            assert await line.ack(first.lease) == [1]
            assert (await line.counts()).length == 1
            await line.close()
            assert payloads(await line.take()) == [b"two"]
        finally:
            await line.delete()


async def test_queues_with_all_these_names_stand_beside_each_other(
    own_service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    async with connect(own_service.address) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        lines = [Line(stub, name) for name in PROPER_AND_HARMLESS]
        for line in lines:
            assert (await line.create()).created
            await line.put(line.name.encode(), b"second")
        for line in lines:
            first, second = await line.take(2)
            assert (first.message.payload, second.message.payload) == (line.name.encode(), b"second")
            await line.ack(first.lease)
            await line.delay(second.lease, delay_ms=0)
        listed = await stub.List(queue_service_pb2.ListRequest(page_size=1_000), timeout=SLACK_S)
        assert [queue.name for queue in listed.queues] == sorted(PROPER_AND_HARMLESS, key=str.encode)
        for line in lines:  # deleting one leaves the others whole
            assert [seen.message.payload for seen in await line.peek(5)] == [b"second"]
            await line.delete()


@pytest.mark.parametrize("method", REQUESTS, ids=short)
async def test_a_caller_that_vanishes_in_the_middle_leaves_a_queue_that_works(
    line: Line, keys: Keys, channel: grpc.aio.Channel, method: str
) -> None:
    for number in range(12):
        await line.create(bound=100)
        await line.put(b"kept", Message(id=f"id {number}", payload=b"named"))
        raw: Any = channel.unary_unary(method)
        call = raw(REQUESTS[method](line.name).SerializeToString(), timeout=SLACK_S)
        for _ in range(number % 6):
            await asyncio.sleep(0)
        call.cancel()
        # Done or not done, never half: the books balance, the roles are free, and it can be used and deleted.
        if keys.client.exists(keys["bound"]):
            try:
                assert_balanced((await line.describe()).counts)
            except grpc.aio.AioRpcError as error:  # it was on its way to be deleted
                assert error.code() is grpc.StatusCode.NOT_FOUND
        try:
            await line.delete()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND
        await eventually(lambda: keys.all() == set())


@pytest.mark.any_store
@pytest.mark.parametrize("method", [*REQUESTS, *sorted(WITHOUT_QUEUE)], ids=short)
async def test_a_call_without_a_deadline_is_answered(channel: grpc.aio.Channel, line: Line, method: str) -> None:
    await line.create()
    request = REQUESTS[method](line.name).SerializeToString() if method in REQUESTS else b""
    async with asyncio.timeout(SLACK_S):
        await call_raw(channel, method, request, timeout=None)


@pytest.mark.any_store
@pytest.mark.parametrize("method", [*REQUESTS, *sorted(WITHOUT_QUEUE)], ids=short)
async def test_unknown_fields_of_a_newer_client_are_passed_over(
    channel: grpc.aio.Channel, line: Line, method: str
) -> None:
    await line.create()
    request = REQUESTS[method](line.name).SerializeToString() if method in REQUESTS else b""
    field_1000 = b"\xc2\x3e\x03new"
    assert isinstance(await call_raw(channel, method, request + field_1000), bytes)


@pytest.mark.any_store
async def test_the_two_services_are_the_only_ones_of_the_package(channel: grpc.aio.Channel) -> None:
    for method in ("/headway.v1.Nothing/Create", QUEUE_SERVICE + "create", ADMIN_SERVICE + "Create", "/headway.v2.Q/C"):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call_raw(channel, method, b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
