"""Which status every error becomes on the wire. The only place where statuses are set.

A failed call carries a `google.rpc.Status` in its trailing metadata: always ErrorInfo, and beside it what the status
code promises (RetryInfo, BadRequest, PreconditionFailure, QuotaFailure). All of it travels as HTTP/2 metadata, of which
clients accept 8 KiB by default, so everything in it is bounded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import ServicerContext
from grpc_status import rpc_status

from headway.v1 import error_reason_pb2, message_pb2
from headwayd.domain.errors import HeadwayError, Reason, Violation
from headwayd.rpc.core.known import Refused
from headwayd.rpc.text import cut_text

ERROR_DOMAIN = "headway.v1"
OK = grpc.StatusCode.OK.name
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}

STATUS_CODES: Mapping[Reason, grpc.StatusCode] = MappingProxyType(
    {
        Reason.QUEUE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.QUEUE_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
        Reason.QUEUE_CLOSED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.QUEUE_DRAINED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.QUEUE_DELETED: grpc.StatusCode.NOT_FOUND,
        Reason.QUEUE_PAUSED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.ROLE_IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.MESSAGE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.DUPLICATE_MESSAGE: grpc.StatusCode.ALREADY_EXISTS,
        Reason.LEASE_STALE: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.LEASE_GONE: grpc.StatusCode.NOT_FOUND,
        Reason.POLL_TOO_SOON: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.PLACE_LOST: grpc.StatusCode.NOT_FOUND,
        Reason.NAME_REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.FIELD_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        Reason.STORE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.OUTCOME_UNKNOWN: grpc.StatusCode.UNAVAILABLE,
        Reason.NOT_DURABLE: grpc.StatusCode.UNAVAILABLE,
        Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
        Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
        Reason.QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.INTERNAL: grpc.StatusCode.INTERNAL,
        Reason.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
        Reason.MESSAGE_LEASED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.MESSAGE_FINISHED: grpc.StatusCode.FAILED_PRECONDITION,
    }
)

# Where asking again makes sense and nobody said when.
_DEFAULT_RETRY_AFTER_MS = 1_000

# 4 KiB of details are 5.4 KiB in base64; with a text of 256 bytes (768 percent-encoded) that stays below 8 KiB.
_MAX_DETAILS_BYTES = 4_096
_MAX_TEXT_BYTES = 256
_MAX_VALUE_BYTES = 512
_MAX_VIOLATIONS = 16
_VIOLATIONS_OVERHEAD_BYTES = 128  # type URL, tags, lengths, the last line


def rich_status(error: HeadwayError) -> status_pb2.Status:
    """The whole answer for a failed call."""
    code = STATUS_CODES[error.reason]
    text = cut_text(error.text, _MAX_TEXT_BYTES)
    status = status_pb2.Status(code=_number(code), message=text)
    metadata = _bounded(error.metadata)
    _pack(status, error_details_pb2.ErrorInfo(reason=error.reason.name, domain=ERROR_DOMAIN, metadata=metadata))
    if code in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}:
        after_ms = _DEFAULT_RETRY_AFTER_MS if error.retry_after_ms is None else error.retry_after_ms
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(max(after_ms, 0))
        _pack(status, retry)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        failure = error_details_pb2.PreconditionFailure()
        failure.violations.add(type=error.reason.name, subject=metadata.get("queue", ""), description=text)
        _pack(status, failure)
    if error.reason is Reason.QUOTA_EXCEEDED:
        quota = error_details_pb2.QuotaFailure()
        quota.violations.add(subject=metadata.get("quota", ""), description=text)
        _pack(status, quota)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        violations = error.violations or (Violation(metadata.get("field", ""), text),)
        _pack(status, _bad_request(violations, room=_MAX_DETAILS_BYTES - status.ByteSize()))
    return status


def item_status(error: HeadwayError) -> message_pb2.Status:
    """The answer for one item of a batch."""
    return message_pb2.Status(
        code=_number(STATUS_CODES[error.reason]),
        message=cut_text(error.text, _MAX_TEXT_BYTES),
        reason=cast("error_reason_pb2.ErrorReason.ValueType", error.reason.value),
        metadata=_bounded(error.metadata),
    )


class Refusal:
    """The same answer for many calls, made once."""

    def __init__(self, error: HeadwayError) -> None:
        self._status = rpc_status.to_status(rich_status(error))
        self.unread = Refused(
            _number(self._status.code), self._status.details, tuple(self._status.trailing_metadata)
        )  # the same for a call whose request has not been read

    async def end(self, context: ServicerContext[Any, Any]) -> NoReturn:
        """Ends a call with it. Never returns."""
        await context.abort(self._status.code, self._status.details, self._status.trailing_metadata)


async def abort(context: ServicerContext[Any, Any], error: HeadwayError) -> NoReturn:
    """Ends the call with the error's status. Never returns."""
    status = rpc_status.to_status(rich_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)


def _number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number


def _pack(status: status_pb2.Status, detail: ProtoMessage) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _bad_request(violations: Sequence[Violation], *, room: int) -> error_details_pb2.BadRequest:
    """The first violation and as many more as fit into `room` bytes; then how many were left out."""
    request = error_details_pb2.BadRequest()
    for index, violation in enumerate(violations):
        field = cut_text(violation.field, _MAX_TEXT_BYTES)
        description = cut_text(violation.description, _MAX_TEXT_BYTES)
        size = request.ByteSize() + len(field.encode()) + len(description.encode())
        if index > 0 and (index == _MAX_VIOLATIONS or size > room - _VIOLATIONS_OVERHEAD_BYTES):
            request.field_violations.add(description=f"and {len(violations) - index} more")
            break
        request.field_violations.add(field=field, description=description)
    return request


def _bounded(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: cut_text(value, _MAX_VALUE_BYTES) for key, value in metadata.items()}


def code_name(context: ServicerContext[Any, Any]) -> str:
    """The name of the code with which a call has ended that was not fine; CANCELLED if nobody set one."""
    code: Any = context.code()  # None, a number, or a code: gRPC 1.85 keeps what it was last given
    if not code:
        return grpc.StatusCode.CANCELLED.name
    return _CODE_NAMES[code if isinstance(code, int) else code.value[0]]
