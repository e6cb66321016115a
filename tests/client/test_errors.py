"""Failed calls become typed errors that carry everything the service said."""

import subprocess
import sys
from datetime import timedelta

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway.core.error import KINDS, from_status
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Status

REASONS = [name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys() if not name.endswith("UNSPECIFIED")]  # noqa: SIM118


def test_every_reason_has_a_class_of_its_own() -> None:
    kinds = [KINDS[ErrorReason.Value(f"ERROR_REASON_{name}")] for name in REASONS]
    assert len(set(kinds)) == len(REASONS)


def test_every_public_name_can_be_had() -> None:
    for name in headway.__all__:
        assert getattr(headway, name) is not None
    assert set(headway.__all__) <= set(dir(headway))
    with pytest.raises(AttributeError):
        headway.Nonsense  # noqa: B018


def test_stubs_do_not_import_the_client() -> None:
    code = (
        "import sys, headway.v1.queue_service_pb2, headway.v1.queue_service_pb2_grpc;"
        "print([m for m in sys.modules if m.startswith(('headway._', 'headway.core'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"


@pytest.mark.parametrize("reason", ["QUEUE_EXISTS", "ROLE_IN_USE", "QUEUE_DELETED", "STORE_FULL", "PERMISSION_DENIED"])
async def test_reason_and_metadata_arrive(service: FakeService, queue: headway.Queue, reason: str) -> None:
    failure = Failure(
        code=grpc.StatusCode.FAILED_PRECONDITION, reason=reason, metadata={"queue": "q", "holder": "ghost"}
    )
    service.fail_next("Close", failure)
    with pytest.raises(headway.HeadwayError) as caught:
        await queue.close()
    assert type(caught.value) is KINDS[ErrorReason.Value(f"ERROR_REASON_{reason}")]
    assert caught.value.reason == ErrorReason.Value(f"ERROR_REASON_{reason}")
    assert caught.value.reason_name == reason
    assert caught.value.code is failure.code
    assert dict(caught.value.metadata) == failure.metadata
    assert str(caught.value) == f"{reason}: it failed"


async def test_retry_span_and_violations_arrive(service: FakeService, queue: headway.Queue) -> None:
    service.fail_next("Get", Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED", retry_seconds=1.5))
    with pytest.raises(headway.Overloaded) as overloaded:
        await queue.get()
    assert overloaded.value.retry_after == timedelta(seconds=1.5)
    service.fail_next(
        "Get",
        Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID", violations=(("lease", "too short"),)),
    )
    with pytest.raises(headway.InvalidArgument) as refused:
        await queue.get()
    assert refused.value.violations == (headway.Violation("lease", "too short"),)


@pytest.mark.parametrize(
    ("code", "retry_seconds", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, None, headway.NotFound),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0, headway.Exhausted),
        (grpc.StatusCode.DATA_LOSS, None, headway.HeadwayError),
    ],
)
async def test_unknown_reason_falls_back_to_the_family_of_the_code(
    service: FakeService,
    queue: headway.Queue,
    code: grpc.StatusCode,
    retry_seconds: float | None,
    kind: type[headway.HeadwayError],
) -> None:
    service.fail_next("Close", Failure(code=code, reason="INVENTED_LATER", retry_seconds=retry_seconds))
    with pytest.raises(headway.HeadwayError) as caught:
        await queue.close()
    assert type(caught.value) is kind
    assert caught.value.reason_name == ""


async def test_what_grpc_itself_refuses_is_too_large(service: FakeService, queue: headway.Queue) -> None:
    with pytest.raises(headway.TooLarge) as refused:
        await queue.put(b"x" * 5 * 1024 * 1024)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not refused.value.is_passing
    assert not service.requests("Put")


async def test_a_lost_answer_is_unknown_and_a_refusal_is_not(service: FakeService, queue: headway.Queue) -> None:
    service.fail_next("Close", Failure(code=grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(headway.Unavailable) as lost:
        await queue.close()
    assert lost.value.is_outcome_unknown
    service.fail_next("Close", Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE"))
    with pytest.raises(headway.StoreUnavailable) as refused:
        await queue.close()
    assert not refused.value.is_outcome_unknown


async def test_no_answer_in_time_is_deadline_exceeded(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.bound = 1
    await queue.put(b"1")
    async with headway.connect(service.address, call_timeout=timedelta(milliseconds=50)) as client:
        with pytest.raises(headway.DeadlineExceeded) as late:
            await client.queue("q").put(b"2", wait=timedelta(milliseconds=1))
    assert late.value.is_outcome_unknown


def test_error_of_one_message_is_typed() -> None:
    error = from_status(
        Status(code=6, message="known", reason=ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE, metadata={"id": "a"})
    )
    assert isinstance(error, headway.DuplicateMessage)
    assert error.metadata["id"] == "a"
    assert error.code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("outcome", ["DONE", "DEAD", "WITHDRAWN", "EXPIRED", "UNKNOWN"])
def test_finished_message_tells_its_outcome(outcome: str) -> None:
    reason = ErrorReason.ERROR_REASON_MESSAGE_FINISHED
    error = from_status(Status(code=9, message="late", reason=reason, metadata={"id": "a", "outcome": outcome}))
    assert isinstance(error, headway.MessageFinished)
    assert error.outcome == outcome


def test_leased_message_is_refused_as_a_precondition() -> None:
    error = from_status(Status(code=9, message="held", reason=ErrorReason.ERROR_REASON_MESSAGE_LEASED))
    assert isinstance(error, headway.MessageLeased)
    assert isinstance(error, headway.PreconditionFailed)
