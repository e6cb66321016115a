"""Namespaces never meet: what one has, nobody of another sees, touches, counts, or finds out about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import redis
from google.protobuf import message_factory, text_format

from harness import ServiceProcess, StoreServer
from harness.errors import WireError, error_of, refused
from headway.v1 import admin_service_pb2, queue_service_pb2
from headwayd.domain.namespaces import SEPARATOR
from security.callers import OTHERS, PLAIN, TEAM, Caller, line_of
from security.test_rights import WAYS, described
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, SLACK_S, Message, leases, message, payloads

pytestmark = pytest.mark.any_store


async def everything_said(channel: grpc.aio.Channel, way: str, queue: str, caller: Caller) -> WireError | str:
    """All of what a call answers that has an end, or its first answer, as text; or its error."""
    path, make = WAYS[way]
    method = described()[path]
    request = make(queue).SerializeToString()
    # A stream that puts waits for room until shortly before its end.
    options: dict[str, Any] = {"metadata": caller.metadata, "timeout": 5 if method.client_streaming else SLACK_S}
    raw: Any = channel
    try:
        if method.client_streaming:
            call = raw.stream_stream(path)(**options)
            await call.write(request)
            await call.done_writing()
            answer = await call.read()
        elif method.server_streaming:
            call = raw.unary_stream(path)(request, **options)
            answer = await call.read()
        else:
            call = raw.unary_unary(path)(request, **options)
            answer = await call
        kind = message_factory.GetMessageClass(method.output_type)
        said = text_format.MessageToString(kind.FromString(answer or b"")) + repr(await call.initial_metadata())
        call.cancel()
    except grpc.aio.AioRpcError as error:
        assert_bare(f"{error.details()!r} {error.trailing_metadata()!r} {error.debug_error_string()}", caller)
        return error_of(error)
    return said


def assert_bare(said: str, caller: Caller) -> None:
    """No text holds the names that queues have inside."""
    for inside in (SEPARATOR, repr(SEPARATOR)[1:-1], "\\037", f"@{caller.namespace}"):
        assert inside not in said, said


@pytest.mark.parametrize("way", WAYS)
async def test_a_queue_of_another_namespace_is_answered_like_one_that_is_not_there(
    guarded_channel: grpc.aio.Channel, name: str, way: str
) -> None:
    await line_of(guarded_channel, OTHERS["admin"], f"{name}-there").create()
    there, absent = (f"{name}-there", f"{name}-nope!")
    answers = []
    for queue in (there, absent):
        said = await everything_said(guarded_channel, way, queue, TEAM["admin"])
        text = repr(said).replace(queue, "QUEUE")
        answers.append(text)
    if way not in ("Create", "GetServerInfo"):  # these tell the time
        assert answers[0] == answers[1]


@pytest.mark.parametrize("way", WAYS)
async def test_no_answer_holds_the_name_that_a_queue_has_inside(
    guarded_channel: grpc.aio.Channel, guarded_service: ServiceProcess, name: str, way: str
) -> None:
    line = line_of(guarded_channel, TEAM["admin"], name)
    for policy in ({}, {"bound": 1, "limit": 1}):
        try:
            await line.delete()
        except grpc.aio.AioRpcError as error:
            assert error.code() is NOT_FOUND
        await line.create(**policy)
        await line.put(b"one")
        for _ in range(2):  # again: it may have closed, filled or deleted the queue
            said = await everything_said(guarded_channel, way, name, TEAM["admin"])
            assert_bare(repr(said), TEAM["admin"])
    log = guarded_service.log.read_text()
    assert SEPARATOR not in log
    assert repr(SEPARATOR)[1:-1] not in log


async def test_the_same_name_is_another_queue_in_every_namespace(guarded_channel: grpc.aio.Channel, name: str) -> None:
    lines = [line_of(guarded_channel, callers["admin"], name) for callers in (TEAM, OTHERS, PLAIN)]
    for number, line in enumerate(lines):
        assert (await line.create(bound=number + 1)).created
        await line.put(b"%d" % number)
    for number, line in enumerate(lines):
        queue = await line.describe()
        assert (queue.name, queue.policy.bound, queue.counts.length) == (name, number + 1, 1)
        assert payloads((await line.get(5)).deliveries) == [b"%d" % number]
    await lines[0].delete()
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await lines[0].describe()
    assert said.metadata == {"queue": name}
    assert said.message == f"there is no queue '{name}'"
    assert [(await line.describe()).counts.leased for line in lines[1:]] == [1, 1]


async def test_a_list_has_the_callers_namespace_only_page_by_page(guarded_channel: grpc.aio.Channel, name: str) -> None:
    for callers, count in ((TEAM, 5), (OTHERS, 3), (PLAIN, 2)):
        for number in range(count):
            await line_of(guarded_channel, callers["admin"], f"{name}-{number}").create()
    for callers, count in ((TEAM, 5), (OTHERS, 3), (PLAIN, 2)):
        stub, found, token = line_of(guarded_channel, callers["watcher"], name).stub, [], ""
        while True:
            request = queue_service_pb2.ListRequest(prefix=name, page_size=2, page_token=token)
            page = await stub.List(request, timeout=SLACK_S)
            found += [queue.name for queue in page.queues]
            token = page.next_page_token
            assert_bare(token, callers["watcher"])
            if not token:
                break
        assert found == [f"{name}-{number}" for number in range(count)]


@pytest.mark.parametrize("begins", [SEPARATOR, f"{SEPARATOR}q-"])
@pytest.mark.parametrize("namespace", ["team", "others", "nobodys"])
async def test_no_list_is_asked_for_by_the_names_that_queues_have_inside(
    guarded_channel: grpc.aio.Channel, name: str, namespace: str, begins: str
) -> None:
    """Nor does it tell whether there is such a namespace. The default one is where no qualifier is put before them."""
    await line_of(guarded_channel, TEAM["admin"], name).create()
    for callers in (PLAIN, TEAM, OTHERS):
        for role in ("watcher", "admin"):
            stub = line_of(guarded_channel, callers[role], name).stub
            by_prefix = queue_service_pb2.ListRequest(prefix=namespace + begins)
            by_token = queue_service_pb2.ListRequest(page_token=namespace + begins)
            for field, request in (("prefix", by_prefix), ("page_token", by_token)):
                with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
                    await stub.List(request, timeout=SLACK_S)
                assert said.metadata == {"field": field}


async def test_a_lease_of_one_namespace_means_nothing_in_another(guarded_channel: grpc.aio.Channel, name: str) -> None:
    mine, yours = (line_of(guarded_channel, callers["admin"], name) for callers in (TEAM, OTHERS))
    await mine.create()
    await yours.create()
    await mine.put(b"mine")
    [delivery] = await mine.take()
    [settled] = await yours.ack(delivery.lease)
    assert (await mine.describe()).counts.leased == 1
    assert await mine.ack(delivery.lease) != [settled]


async def test_what_time_brings_comes_in_every_namespace(guarded_channel: grpc.aio.Channel, name: str) -> None:
    line = line_of(guarded_channel, TEAM["admin"], name)
    await line.create()
    late = Message(payload=b"late")
    late.delay.FromMilliseconds(200)
    await line.put(late, b"lapses")
    assert payloads(await line.take(lease_ms=200)) == [b"lapses"]
    both = [payloads(await line.take(wait_ms=5_000, lease_ms=10_000)) for _ in range(2)]
    assert sorted(both) == [[b"lapses"], [b"late"]]


async def test_dead_messages_are_redriven_within_their_namespace(guarded_channel: grpc.aio.Channel, name: str) -> None:
    mine, yours = (line_of(guarded_channel, callers["admin"], f"{name}-to") for callers in (TEAM, OTHERS))
    await mine.create()
    await yours.create()
    source = line_of(guarded_channel, TEAM["admin"], name)
    request = queue_service_pb2.CreateRequest(queue=name)
    request.policy.retry.max_attempts = 1
    await source.stub.Create(request, timeout=SLACK_S)
    await source.put(b"dies")
    await source.delay(*leases(await source.take()))
    assert (await source.describe()).counts.dead == 1
    assert source.admin is not None
    redrive = admin_service_pb2.RedriveRequest(queue=name, to_queue=f"{name}-to")
    assert [answer.redriven async for answer in source.admin.Redrive(redrive, timeout=SLACK_S)][-1] == 1
    assert payloads(await mine.take()) == [b"dies"]
    assert (await yours.describe()).counts.accepted == 0


@pytest.fixture
def raw(store_server: StoreServer) -> Iterator[redis.Redis]:
    with store_server.client() as client:
        yield client


async def test_a_namespace_is_its_own_prefix_in_the_store(
    guarded_channel: grpc.aio.Channel, guarded_service: ServiceProcess, raw: redis.Redis, name: str
) -> None:
    await line_of(guarded_channel, TEAM["admin"], name).create()
    await line_of(guarded_channel, TEAM["admin"], name).put(message(b"one"))
    prefix = guarded_service.env["PRESSURE_PREFIX"]
    keys = {key.decode() for key in raw.scan_iter(match=f"*{name}*", count=1_000)}
    assert keys
    assert all(key.startswith(f"{prefix}@team:{name}") for key in keys)
    assert raw.lrange(f"{prefix}@team:{name}", 0, -1) == [b"one"]
