"""Every call that the service serves, on one queue, and what trouble with the store must make of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message as ProtoMessage

from harness import WireError, error_of
from headway.v1 import admin_service_pb2, message_pb2, queue_pb2, queue_service_pb2
from wire.calls import Line

LEASE = "AAAA"  # replaced by a real one where a test has one
BUDGET_S = 2.0  # the store's share of a call, at most
MARGIN_S = 1.0  # for a machine that does other things, too

READS = frozenset({"Describe", "List", "Peek", "ListLeased", "ListDead", "Check", "WatchPosition", "WatchQueue"})
ENDLESS = frozenset({"WatchQueue"})  # of these the first message will do
# These look first, and have nothing to write to a queue that is empty or is not there.
LOOKS_FIRST = READS | {"Purge"}


@dataclass(frozen=True, slots=True)
class Answer:
    """How one call ended, and how long it took."""

    name: str
    error: WireError
    took_s: float
    reply: ProtoMessage | None = None


def requests(queue: str, lease: str, *, id_: str = "known") -> dict[str, ProtoMessage]:
    """One valid request of every call that needs the store to answer."""
    message = message_pb2.Message(id=id_, payload=b"once")
    return {
        "Create": queue_service_pb2.CreateRequest(queue=f"{queue}-other"),
        "Describe": queue_service_pb2.DescribeRequest(queue=queue),
        "List": queue_service_pb2.ListRequest(),
        "Update": queue_service_pb2.UpdateRequest(
            queue=queue, policy=queue_pb2.Policy(bound=1_000), update_mask=FieldMask(paths=["bound"])
        ),
        "Put": queue_service_pb2.PutRequest(
            queue=queue, messages=[message], on_duplicate=message_pb2.ON_DUPLICATE_KEEP
        ),
        "Get": queue_service_pb2.GetRequest(queue=queue),
        "Ack": queue_service_pb2.AckRequest(queue=queue, leases=[lease]),
        "Delay": queue_service_pb2.DelayRequest(queue=queue, leases=[lease]),
        "Extend": queue_service_pb2.ExtendRequest(queue=queue, leases=[lease]),
        "Withdraw": queue_service_pb2.WithdrawRequest(queue=queue, message_ids=["unknown"]),
        "Peek": queue_service_pb2.PeekRequest(queue=queue),
        "Close": queue_service_pb2.CloseRequest(queue=f"{queue}-other"),
        "Delete": queue_service_pb2.DeleteRequest(queue=f"{queue}-other"),
        "WatchPosition": queue_service_pb2.WatchPositionRequest(
            queue=queue, messages=queue_service_pb2.MessageIds(ids=["unknown"])
        ),
        "WatchQueue": queue_service_pb2.WatchQueueRequest(queue=queue),
        "Pause": admin_service_pb2.PauseRequest(queue=f"{queue}-other"),
        "Resume": admin_service_pb2.ResumeRequest(queue=f"{queue}-other"),
        "Purge": admin_service_pb2.PurgeRequest(queue=f"{queue}-other"),
        "Repair": admin_service_pb2.RepairRequest(queue=queue),
        "Check": admin_service_pb2.CheckRequest(queue=queue),
        "ListLeased": admin_service_pb2.ListLeasedRequest(queue=queue),
        "ListDead": admin_service_pb2.ListDeadRequest(queue=queue),
        "Redrive": admin_service_pb2.RedriveRequest(queue=queue),
    }


def method(line: Line, name: str) -> Any:
    """The stub's method of this name, of whichever service has it."""
    return getattr(line.stub, name, None) or getattr(line.admin, name)


async def ask(line: Line, name: str, request: ProtoMessage, *, timeout: float) -> Answer:
    """One call, timed, its error decoded."""
    begun = time.monotonic()
    reply, error = None, WireError()
    try:
        call = method(line, name)(request, timeout=timeout)
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            reply = await call
        elif name in ENDLESS:
            reply = await call.read()
            call.cancel()
        else:  # a stream: its last message
            reply = [told async for told in call][-1]
    except grpc.aio.AioRpcError as failed:
        error = error_of(failed)
    return Answer(name, error, time.monotonic() - begun, reply)


async def ask_all(line: Line, lease: str, *, timeout: float = 10.0, id_: str = "known") -> list[Answer]:
    """Every call at once."""
    asked = requests(line.name, lease, id_=id_).items()
    return await asyncio.gather(*(ask(line, name, request, timeout=timeout) for name, request in asked))


async def ask_each(line: Line, lease: str, *, timeout: float = 10.0) -> AsyncIterator[Answer]:
    """Every call, one after the other."""
    for name, request in requests(line.name, lease).items():
        yield await ask(line, name, request, timeout=timeout)


def assert_unavailable(answer: Answer, *causes: str, within_s: float = BUDGET_S + MARGIN_S) -> None:
    """Nothing happened, and it said so in time."""
    error = answer.error
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"), answer
    assert error.metadata.get("cause") in causes, answer
    assert error.retry_delay, answer
    assert answer.took_s < within_s, answer


def assert_not_done_or_unknown(answer: Answer, *causes: str, within_s: float = BUDGET_S + MARGIN_S) -> None:
    """Which of the two, depends on whether it was sent; what only reads is simply not done."""
    if answer.error.reason == "OUTCOME_UNKNOWN" and answer.name not in READS:
        assert_unknown(answer, *causes, within_s=within_s)
    else:
        assert_unavailable(answer, *causes, within_s=within_s)


def assert_unknown(answer: Answer, *causes: str, within_s: float = BUDGET_S + MARGIN_S) -> None:
    """It may have happened, and it said so in time."""
    error = answer.error
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"), answer
    assert error.metadata.get("cause") in causes, answer
    assert error.retry_delay, answer
    assert answer.took_s < within_s, answer
