"""Every reason of an error that this version can give is provoked here over the wire, with all that it promises."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import FaultProxy, ServiceProcess, StoreServer, error_of, eventually
from headway.v1 import admin_service_pb2, error_reason_pb2
from wire.calls import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    SLACK_S,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Keys,
    Line,
    Message,
    line_at,
)
from wire.conditions import consumers_wait, producers_wait

PREFIX = "__reasons__"
PROTOCOL = Path(__file__).resolve().parents[2] / "docs/protocol.md"
RETRY_S = {  # how long each reason asks callers to stay away, as the normative table says
    reason: float(seconds)
    for reason, seconds in re.findall(r"(?m)^\| ([A-Z_]+) \|.* ([\d.]+) s \|$", PROTOCOL.read_text())
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A service on a store of its own, so that any harm may be done to it."""

    line: Line
    keys: Keys
    store: StoreServer
    proxy: FaultProxy
    service: ServiceProcess


@pytest.fixture
async def stage(
    fresh_store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> AsyncIterator[Stage]:
    async with FaultProxy(fresh_store_server.port) as proxy:
        settings = {
            "HEADWAY_REDIS_URL": proxy.url,
            "PRESSURE_PREFIX": PREFIX,
            "HEADWAY_STORE_TIMEOUT": "2s",  # a machine that stands still for a second is no reason
        }
        service = await asyncio.to_thread(lambda: make_service(**settings))
        name = f"reasons-{uuid.uuid4().hex[:8]}"
        async with line_at(service.address, name, connect) as line:
            with fresh_store_server.client() as client:
                yield Stage(line, Keys(client, PREFIX, name), fresh_store_server, proxy, service)
        await asyncio.to_thread(service.stop)


async def queue_not_found(on: Stage) -> None:
    await on.line.describe()


async def queue_exists(on: Stage) -> None:
    await on.line.create(bound=1)
    await on.line.create(bound=2)


async def queue_closed(on: Stage) -> None:
    await on.line.create()
    await on.line.close()
    await on.line.put(b"x")


async def queue_drained(on: Stage) -> None:
    await on.line.create()
    await on.line.close()
    await on.line.get()


async def queue_full(on: Stage) -> None:
    await on.line.create(bound=1)
    await on.line.put(b"x")
    await on.line.put(b"x")


async def queue_deleted(on: Stage) -> None:
    await on.line.create()
    waiting = asyncio.create_task(on.line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(on.line))
    await on.line.delete()
    await waiting


async def queue_paused(on: Stage) -> None:
    assert on.line.admin is not None
    await on.line.create()
    await on.line.admin.Pause(admin_service_pb2.PauseRequest(queue=on.line.name), timeout=SLACK_S)
    await on.line.get()


async def role_in_use(on: Stage) -> None:
    await on.line.create()
    on.keys.client.rpop(on.keys["producer_free"])
    await on.line.put(b"x", wait_ms=100)


async def duplicate_message(on: Stage) -> None:
    await on.line.create()
    for _ in range(2):
        await on.line.put(Message(id="one"))


async def name_refused(on: Stage) -> None:
    await Line(on.line.stub, "a:closed").create()


async def field_invalid(on: Stage) -> None:
    await on.line.create(limit=2_000_000)


async def too_large(on: Stage) -> None:
    await on.line.create()
    await on.line.put(b"x" * (1024 * 1024 + 1))


async def store_unavailable(on: Stage) -> None:
    on.proxy.cut()
    with contextlib.suppress(grpc.aio.AioRpcError):  # may have been on its way
        await on.line.describe()
    await on.line.describe()


async def store_full(on: Stage) -> None:
    await on.line.create()
    on.keys.client.config_set("maxmemory", 1)
    await on.line.put(b"x")


async def outcome_unknown(on: Stage) -> None:
    await on.line.create()

    async def answer_is_lost() -> bool:
        on.proxy.drop_replies = 0.0
        try:
            await on.line.counts()
            on.proxy.drop_replies = 1.0
            await on.line.put(b"x")
        except grpc.aio.AioRpcError as error:
            # After a pause of the machine another answer was lost first, and with it the connection: tried again.
            if error_of(error).reason != "STORE_UNAVAILABLE":
                raise
        return False

    await eventually(answer_is_lost, within=20)


async def not_durable(on: Stage) -> None:
    await on.line.create()
    on.keys.client.config_set("min-replicas-to-write", 1)
    await on.line.put(b"x")


async def shutting_down(on: Stage) -> None:
    await on.line.create()
    waiting = asyncio.create_task(on.line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(on.line))
    on.service.signal(signal.SIGTERM)
    await waiting


async def internal(on: Stage) -> None:
    await on.line.create()
    on.keys.client.delete(on.keys["producer_free"])
    on.keys.client.hset(on.keys[""], "not", "a list")  # somebody else's key where the line should be
    await on.line.get()


async def not_implemented(on: Stage) -> None:
    async with grpc.aio.insecure_channel(on.service.address) as channel:
        call: Any = channel.unary_unary("/headway.v1.QueueService/OfALaterVersion")
        await call(b"", timeout=SLACK_S)


Provoker = Callable[[Stage], Awaitable[None]]
# Reason → how it comes about, its status, the metadata that the schema's comments promise.
REACHABLE: dict[str, tuple[Provoker, grpc.StatusCode, set[str]]] = {
    "QUEUE_NOT_FOUND": (queue_not_found, NOT_FOUND, {"queue"}),
    "QUEUE_EXISTS": (queue_exists, ALREADY_EXISTS, {"queue", "fields"}),
    "QUEUE_CLOSED": (queue_closed, FAILED_PRECONDITION, {"queue"}),
    "QUEUE_DRAINED": (queue_drained, FAILED_PRECONDITION, {"queue"}),
    "QUEUE_FULL": (queue_full, RESOURCE_EXHAUSTED, {"queue", "bound"}),
    "QUEUE_DELETED": (queue_deleted, NOT_FOUND, {"queue"}),
    "QUEUE_PAUSED": (queue_paused, FAILED_PRECONDITION, {"queue"}),
    "ROLE_IN_USE": (role_in_use, FAILED_PRECONDITION, {"queue", "role", "holder"}),
    "DUPLICATE_MESSAGE": (duplicate_message, ALREADY_EXISTS, {"queue", "id"}),
    "NAME_REFUSED": (name_refused, INVALID_ARGUMENT, {"field"}),
    "FIELD_INVALID": (field_invalid, INVALID_ARGUMENT, {"field"}),
    "TOO_LARGE": (too_large, INVALID_ARGUMENT, {"field", "limit", "size"}),
    "STORE_UNAVAILABLE": (store_unavailable, UNAVAILABLE, {"cause"}),
    "STORE_FULL": (store_full, RESOURCE_EXHAUSTED, set()),
    "OUTCOME_UNKNOWN": (outcome_unknown, UNAVAILABLE, {"cause"}),
    "NOT_DURABLE": (not_durable, UNAVAILABLE, set()),
    "SHUTTING_DOWN": (shutting_down, UNAVAILABLE, set()),
    "INTERNAL": (internal, grpc.StatusCode.INTERNAL, {"incident"}),
    "NOT_IMPLEMENTED": (not_implemented, UNIMPLEMENTED, {"method"}),
}
# Reason → why no call can be made to give it yet.
UNREACHABLE = {
    "UNSPECIFIED": "never sent",
    "MESSAGE_NOT_FOUND": "messages are answered one by one; test_withdraw.py has it",
    "MESSAGE_LEASED": "messages are answered one by one; test_withdraw.py has it",
    "MESSAGE_FINISHED": "messages are answered one by one; test_outcomes.py has it",
    "LEASE_STALE": "leases are answered one by one, with STALE",
    "LEASE_GONE": "leases are answered one by one, with GONE",
    "POLL_TOO_SOON": "needs the consumer line",
    "PLACE_LOST": "needs the consumer line",
    "OVERLOADED": "needs 20,000 calls at once; the gate has its own tests",
    "UNAUTHENTICATED": "needs callers; tests/security has it",
    "PERMISSION_DENIED": "needs callers; tests/security has it",
    "QUOTA_EXCEEDED": "needs quotas; tests/security has them",
}


def test_every_reason_of_the_schema_is_either_provoked_here_or_said_to_be_unreachable() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    assert reasons == REACHABLE.keys() | UNREACHABLE.keys()
    assert not REACHABLE.keys() & UNREACHABLE.keys()


@pytest.mark.parametrize("reason", REACHABLE)
async def test_the_reason_comes_with_its_status_and_all_that_it_promises(stage: Stage, reason: str) -> None:
    provoke, code, metadata = REACHABLE[reason]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await provoke(stage)
    said = error_of(error.value)
    assert (said.reason, said.code, said.domain) == (reason, code, "headway.v1")
    assert said.metadata.keys() == metadata
    assert all(value or key == "holder" for key, value in said.metadata.items())
    if "queue" in metadata:
        assert said.metadata["queue"] == stage.line.name
    assert said.message
    assert "Traceback" not in said.message
    # What stands beside it depends on the status alone.
    assert (said.retry_delay is not None) == (code in {RESOURCE_EXHAUSTED, UNAVAILABLE})
    if said.retry_delay is not None:
        assert said.retry_delay.total_seconds() == RETRY_S[reason]
    assert bool(said.violations) == (code is INVALID_ARGUMENT)
    if said.violations:
        assert said.metadata["field"] in said.violations
        assert all(said.violations.values())
    assert bool(said.preconditions) == (code is FAILED_PRECONDITION)


async def test_a_defect_that_befalls_one_message_is_told_as_that_of_a_call(stage: Stage) -> None:
    await stage.line.create(bound=1)
    waiting = asyncio.create_task(stage.line.put(b"1", b"2", wait_ms=20_000))
    await eventually(lambda: producers_wait(stage.line))
    with stage.keys.client.pipeline() as together:  # as above, while nobody looks
        together.delete(stage.keys[""])
        together.hset(stage.keys[""], "not", "a list")
        together.execute()
    accepted, failed = (await waiting).results
    assert not accepted.HasField("error")
    assert failed.error.reason == error_reason_pb2.ERROR_REASON_INTERNAL
    assert failed.error.metadata.keys() == {"incident"}
    assert failed.error.metadata["incident"] in stage.service.log.read_text()
