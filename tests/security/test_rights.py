"""Every call of every service, by every kind of caller: who is refused is what docs/security.md says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message as ProtoMessage
from grpc_health.v1 import health_pb2

from harness.errors import error_of
from headway.v1 import admin_service_pb2, queue_service_pb2
from security.callers import EXPIRED, ROLES, TEAM, Metadata, bearer, line_of
from wire.calls import ALREADY_EXISTS, SLACK_S, message
from wire.every_call import ADMIN_SERVICE, QUEUE_SERVICE, REQUESTS, short

pytestmark = pytest.mark.any_store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"
ROW = re.compile(r"^\| (\w+)(?: \(([\w, ]+)\))? \|((?: (?:yes )?\|){4})$", re.MULTILINE)
NOBODY: dict[str, Metadata] = {
    "nothing": (),
    "an empty token": (("authorization", ""),),
    "another scheme": (("authorization", "Basic YWRtaW46YWRtaW4="),),
    "an unknown token": bearer("made-up"),
    "a token that is none": bearer("a.b.c"),
    "an expired token": EXPIRED.metadata,
    "a known token behind another": (*bearer("made-up"), *TEAM["admin"].metadata),
}
_WATCH = queue_service_pb2.WatchPositionRequest
# One sound request of each way to call, by the words of the document.
WAYS: dict[str, tuple[str, Callable[[str], ProtoMessage]]] = {
    short(method): (method, request) for method, request in REQUESTS.items() if short(method) != "WatchPosition"
} | {
    "List": (QUEUE_SERVICE + "List", lambda _: queue_service_pb2.ListRequest()),
    "GetServerInfo": (ADMIN_SERVICE + "GetServerInfo", lambda _: admin_service_pb2.GetServerInfoRequest()),
    "WatchPosition (messages)": (QUEUE_SERVICE + "WatchPosition", REQUESTS[QUEUE_SERVICE + "WatchPosition"]),
    "WatchPosition (messages, attended)": (
        QUEUE_SERVICE + "WatchPosition",
        lambda queue: _WATCH(queue=queue, messages=queue_service_pb2.MessageIds(ids=["unknown"], attended=True)),
    ),
    "WatchPosition (stand)": (
        QUEUE_SERVICE + "WatchPosition",
        lambda queue: _WATCH(queue=queue, stand=queue_service_pb2.Stand()),
    ),
    "WatchPosition (blocked)": (
        QUEUE_SERVICE + "WatchPosition",
        lambda queue: _WATCH(queue=queue, blocked=queue_service_pb2.Blocked(producer="nobody")),
    ),
    "Produce": (
        QUEUE_SERVICE + "Produce",
        lambda queue: queue_service_pb2.ProduceRequest(queue=queue, messages=[message(b"one")], batch=1),
    ),
    "Consume": (
        QUEUE_SERVICE + "Consume",
        lambda queue: queue_service_pb2.ConsumeRequest(start=queue_service_pb2.ConsumeStart(queue=queue)),
    ),
}


def documented() -> dict[str, set[str]]:
    """Which roles the document allows what."""
    rows = {}
    for call, way, cells in ROW.findall(DOCUMENT.read_text()):
        said = [cell.strip() == "yes" for cell in cells.split("|")[:-1]]
        rows[f"{call} ({way})" if way else call] = {role for role, is_yes in zip(ROLES, said, strict=True) if is_yes}
    return rows


def described() -> dict[str, Any]:
    """Every call of the schema, by path."""
    return {
        f"/{service.full_name}/{method.name}": method
        for file in (queue_service_pb2, admin_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


async def reason_of(channel: grpc.aio.Channel, way: str, queue: str, metadata: Metadata) -> str:
    """Why it was refused; "" if it was served, though perhaps not as hoped for."""
    path, make = WAYS[way]
    method = described()[path]
    request = make(queue).SerializeToString()
    options: dict[str, Any] = {"metadata": metadata, "timeout": SLACK_S}
    raw: Any = channel
    try:
        if method.client_streaming:
            call = raw.stream_stream(path)(**options)
            await call.write(request)
            await call.done_writing()
            await call.read()
        elif method.server_streaming:
            call = raw.unary_stream(path)(request, **options)
            await call.read()
        else:
            await raw.unary_unary(path)(request, **options)
            return ""
    except grpc.aio.AioRpcError as error:
        return error_of(error).reason
    call.cancel()
    return ""


def test_the_document_and_this_test_have_every_call_of_the_schema() -> None:
    assert set(documented()) == set(WAYS)
    assert {path for path, _ in WAYS.values()} == set(described())


@pytest.mark.parametrize("way", WAYS)
async def test_nobody_without_credentials_that_hold_is_served(
    guarded_channel: grpc.aio.Channel, name: str, way: str
) -> None:
    for kind, metadata in NOBODY.items():
        assert await reason_of(guarded_channel, way, name, metadata) == "UNAUTHENTICATED", kind


@pytest.mark.parametrize("way", WAYS)
async def test_a_role_is_served_what_the_document_allows(
    guarded_channel: grpc.aio.Channel, name: str, way: str
) -> None:
    allowed = documented()[way]
    for role in ROLES:
        try:
            await line_of(guarded_channel, TEAM["admin"], name).create()
        except grpc.aio.AioRpcError as error:
            assert error.code() is ALREADY_EXISTS
        reason = await reason_of(guarded_channel, way, name, TEAM[role].metadata)
        assert (reason != "PERMISSION_DENIED") == (role in allowed), (role, reason)
        assert reason != "UNAUTHENTICATED"


async def test_health_is_told_to_everybody(guarded_channel: grpc.aio.Channel) -> None:
    request = health_pb2.HealthCheckRequest().SerializeToString()
    check: Any = guarded_channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = health_pb2.HealthCheckResponse.FromString(await check(request, timeout=SLACK_S))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch: Any = guarded_channel.unary_stream("/grpc.health.v1.Health/Watch")
    call = watch(request, timeout=SLACK_S)
    assert await call.read()
    call.cancel()


async def test_a_refusal_says_what_would_have_been_needed(guarded_channel: grpc.aio.Channel, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line_of(guarded_channel, TEAM["watcher"], name).put(b"one")
    said = error_of(caught.value)
    assert (said.code, said.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    assert said.metadata == {"queue": name, "roles": "producer,admin"}
