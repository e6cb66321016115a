"""Every reason has one status, and carries on the wire what the schema promises for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

import grpc
import grpc.aio
import pytest

from harness.errors import error_of, refused
from headway.v1 import error_reason_pb2, message_pb2, queue_service_pb2_grpc
from headway.v1.queue_service_pb2 import DescribeRequest
from headwayd.domain import errors
from headwayd.domain.calls import Code
from headwayd.domain.errors import HeadwayError, Reason, Violation
from headwayd.domain.model import Settled
from headwayd.rpc.status import STATUS_CODES, item_status, rich_status
from unit.rpc.fake_engine import FakeEngine

QueueStub: TypeAlias = "queue_service_pb2_grpc.QueueServiceAsyncStub"

REAL_REASONS = [reason for reason in Reason if reason is not Reason.UNSPECIFIED]
RETRIED = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
# What a client accepts of metadata by default, names and base64 included.
METADATA_LIMIT_BYTES = 8 * 1024


def error_classes(root: type[HeadwayError] = HeadwayError) -> list[type[HeadwayError]]:
    found = [root]
    for below in root.__subclasses__():
        found.extend(error_classes(below))
    return found


def error_with(reason: Reason) -> HeadwayError:
    """The domain's error for a reason, with some of what it can carry."""
    (error_class,) = [c for c in error_classes() if c.__dict__.get("reason") is reason and c is not HeadwayError]
    return error_class("what happened", metadata={"queue": "q", "quota": "messages", "field": "f", "key": "käse"})


def test_reasons_are_those_of_the_schema() -> None:
    schema = {name.removeprefix("ERROR_REASON_"): number for name, number in error_reason_pb2.ErrorReason.items()}
    assert schema == {reason.name: reason.value for reason in Reason}


def test_codes_are_those_of_grpc() -> None:
    known = {code.name.replace("CANCELLED", "CANCELED"): code.value[0] for code in grpc.StatusCode}
    assert {"OK": 0, **{code.name: code.value for code in Code}} == known


def test_settled_are_those_of_the_schema() -> None:
    schema = {name.removeprefix("SETTLED_"): number for name, number in message_pb2.Settled.items() if number}
    assert schema == {settled.name: settled.value for settled in Settled}


def test_every_reason_has_the_status_that_the_schema_says() -> None:
    schema = (Path(__file__).parents[3] / "proto/headway/v1/error_reason.proto").read_text()
    said = re.findall(r"^  // ([A-Z_]+)\..*\n(?:  //.*\n)*  ERROR_REASON_(\w+) = ", schema, re.MULTILINE)
    assert {name: code for code, name in said} == {reason.name: code.name for reason, code in STATUS_CODES.items()}
    assert set(STATUS_CODES) == set(REAL_REASONS)


@pytest.mark.parametrize("reason", REAL_REASONS, ids=lambda reason: reason.name)
async def test_every_reason_arrives_with_what_its_status_promises(
    reason: Reason, stub: QueueStub, engine: FakeEngine
) -> None:
    engine.error = error_with(reason)
    with refused(reason.name, STATUS_CODES[reason]) as said:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    assert said.code is STATUS_CODES[reason]
    assert said.domain == "headway.v1"
    if reason is not Reason.INTERNAL:
        assert said.metadata["key"] == "käse"
        assert said.message == "what happened"
    assert (said.retry_delay is not None) == (said.code in RETRIED)
    assert bool(said.violations) == (said.code is grpc.StatusCode.INVALID_ARGUMENT)
    assert said.preconditions == ([(reason.name, "q")] if said.code is grpc.StatusCode.FAILED_PRECONDITION else [])
    assert said.quotas == (["messages"] if reason is Reason.QUOTA_EXCEEDED else [])


@pytest.mark.parametrize("reason", REAL_REASONS, ids=lambda reason: reason.name)
def test_an_item_says_the_same_as_a_failed_call(reason: Reason) -> None:
    error = error_with(reason)
    status, rich = item_status(error), rich_status(error)
    assert (status.code, status.message) == (rich.code, rich.message)
    assert error_reason_pb2.ErrorReason.Name(status.reason) == f"ERROR_REASON_{reason.name}"
    assert dict(status.metadata) == error.metadata


def test_retry_info_is_there_even_if_nobody_said_when() -> None:
    error = errors.QueueFull("full", retry_after_ms=250)
    error.retry_after_ms = None
    assert any(detail.type_url.endswith("RetryInfo") for detail in rich_status(error).details)


async def test_retry_delay_is_the_one_of_the_error(stub: QueueStub, engine: FakeEngine) -> None:
    engine.error = errors.QueueFull("full", retry_after_ms=1_250)
    with refused("QUEUE_FULL") as said:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    assert said.retry_delay is not None
    assert said.retry_delay.total_seconds() == 1.25


async def test_a_defect_is_internal_with_an_incident_and_tells_nothing_else(
    stub: QueueStub, engine: FakeEngine
) -> None:
    engine.error = ValueError("a secret payload")
    with refused("INTERNAL", grpc.StatusCode.INTERNAL) as said:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    assert len(said.metadata["incident"]) == 16
    assert "secret" not in said.message
    engine.error = errors.InternalError("the lua script said something secret")
    with refused("INTERNAL", grpc.StatusCode.INTERNAL) as again:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    assert again.metadata["incident"] not in {"", said.metadata["incident"]}
    assert "secret" not in again.message


async def test_many_long_violations_stay_within_what_clients_accept(stub: QueueStub, engine: FakeEngine) -> None:
    violations = [Violation(f"messages[{i}].headers[{'k' * 500}]", "é" * 500) for i in range(1_000)]
    engine.error = errors.FieldInvalid("ö" * 5_000, metadata={"field": "x" * 5_000}, violations=violations)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    said = error_of(caught.value)
    assert said.reason == "FIELD_INVALID"
    assert 2 <= len(said.violations) <= 17
    assert said.violations[""].startswith("and 9")
    details = rich_status(engine.error).ByteSize() * 4 / 3 + len("ö".encode()) * 3 * 128
    assert details < METADATA_LIMIT_BYTES


async def test_text_that_is_no_unicode_does_not_break_the_answer(stub: QueueStub, engine: FakeEngine) -> None:
    holder = b"\xff\xfe".decode(errors="surrogateescape")
    engine.error = errors.RoleInUse(f"held by {holder}", metadata={"queue": "q", "holder": holder})
    with refused("ROLE_IN_USE") as said:
        await stub.Describe(DescribeRequest(queue="q"), timeout=5)
    assert said.metadata["holder"] == "??"
