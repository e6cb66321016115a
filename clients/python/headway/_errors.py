# ruff: noqa: E701 - the tree below is read at a glance, one class a line
"""What can go wrong: one tree of exceptions, and how a failed call becomes one of them.

    HeadwayError
    ├── NotFound
    │   ├── QueueNotFound
    │   │   └── QueueDeleted          it went while the call waited
    │   ├── MessageNotFound
    │   ├── LeaseGone                 never given, or its message or queue is no more
    │   └── PlaceLost
    ├── AlreadyExists
    │   ├── QueueExists               with another policy; metadata["fields"]
    │   └── DuplicateMessage
    ├── PreconditionFailed
    │   ├── QueueClosed               takes no more messages
    │   ├── QueueDrained              there will never be another message
    │   ├── QueuePaused
    │   ├── RoleInUse                 a foreign client acts on the queue; metadata["holder"]
    │   ├── MessageLeased             somebody works on it: only its lease has a say
    │   ├── MessageFinished           too late; outcome
    │   └── LeaseStale                somebody newer holds the message
    ├── Exhausted                     retry_after says when it is worth trying again
    │   ├── QueueFull
    │   ├── PollTooSoon
    │   ├── StoreFull
    │   ├── Overloaded
    │   └── QuotaExceeded
    ├── InvalidArgument               violations say which field and why
    │   ├── NameRefused
    │   ├── FieldInvalid
    │   └── TooLarge
    ├── Unavailable                   without a reason: the connection failed
    │   ├── StoreUnavailable          nothing happened
    │   ├── NotDurable                nothing happened
    │   ├── ShuttingDown              nothing happened
    │   └── OutcomeUnknown            may or may not have happened
    ├── DeadlineExceeded              no answer in time: may or may not have happened
    ├── Unauthenticated
    ├── PermissionDenied
    ├── NotImplementedByService
    └── Internal                      a defect of the service; metadata["incident"]

The reasons and the metadata each one promises are documented in `headway/v1/error_reason.proto`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from headway.v1 import message_pb2
from headway.v1.error_reason_pb2 import ErrorReason

DOMAIN = "headway.v1"
_PREFIX = "ERROR_REASON_"
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that was refused, and why."""

    field: str
    description: str


class HeadwayError(Exception):
    """A call, or one message of a batch, that failed.

    reason: the service's reason as a number of `ErrorReason`; 0 if the answer named none (the connection failed, or
    this client does not know the reason).
    code: the canonical gRPC status.
    metadata: what the reason promises, for example `queue`.
    retry_after: how long to wait before trying again, if the service said so.
    violations: the refused fields of an INVALID_ARGUMENT.
    results: for `Queue.put_many` only: the results of the messages before the batch that failed.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_UNSPECIFIED,
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.retry_after = retry_after
        self.violations = tuple(violations)
        self.results: list[message_pb2.PutResult] = []

    @property
    def reason_name(self) -> str:
        """The reason in words, for example "QUEUE_FULL"; "" if the answer named none."""
        return ErrorReason.Name(self.reason).removeprefix(_PREFIX) if self.reason else ""

    @property
    def is_outcome_unknown(self) -> bool:
        """The call may or may not have taken effect; it is safe to repeat with the same ids and leases."""
        if self.reason:
            return self.reason == ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN
        return self.code in _UNKNOWN_CODES

    def __str__(self) -> str:
        text = super().__str__() or self.code.name
        label = self.reason_name or self.code.name
        return text if text.startswith(label) else f"{label}: {text}"


# fmt: off
class NotFound(HeadwayError): """Something that was named does not exist."""
class QueueNotFound(NotFound): """No queue has this name."""
class QueueDeleted(QueueNotFound): """The queue was deleted while the call waited."""
class MessageNotFound(NotFound): """No message with this id is known to the queue."""
class LeaseGone(NotFound): """The lease was never given, or its message or its queue is no more."""
class PlaceLost(NotFound): """The place in line is no longer held."""
class AlreadyExists(HeadwayError): """Something of this name is there already."""
class QueueExists(AlreadyExists): """The queue stands with another policy."""
class DuplicateMessage(AlreadyExists): """A message with this id is known already."""
class PreconditionFailed(HeadwayError): """The queue's state does not allow it."""
class QueueClosed(PreconditionFailed): """The queue is closed: it takes no new messages."""
class QueueDrained(PreconditionFailed): """The queue is closed and empty: there will never be another message."""
class QueuePaused(PreconditionFailed): """The queue is paused: it hands no messages out."""
class RoleInUse(PreconditionFailed): """A foreign client holds the role that the call needs."""
class MessageLeased(PreconditionFailed): """Somebody works on the message: only its lease has a say."""
class LeaseStale(PreconditionFailed): """Somebody newer holds the message, or it was replaced."""
class Exhausted(HeadwayError): """There is no room, or too much work, right now."""
class QueueFull(Exhausted): """The queue is at its bound and no room came in time."""
class PollTooSoon(Exhausted): """A poll came earlier than it was asked for."""
class StoreFull(Exhausted): """The store is out of memory; nothing happened."""
class Overloaded(Exhausted): """The service has more work than it can take; nothing happened."""
class QuotaExceeded(Exhausted): """A quota of the namespace is used up."""
class InvalidArgument(HeadwayError): """Something that was given is not acceptable."""
class NameRefused(InvalidArgument): """The queue's name is not acceptable."""
class FieldInvalid(InvalidArgument): """A field is out of its range or missing."""
class TooLarge(InvalidArgument): """A message or a batch is larger than the service accepts."""
class Unavailable(HeadwayError): """The service or its store could not be reached."""
class StoreUnavailable(Unavailable): """The store did not do it; nothing happened."""
class NotDurable(Unavailable): """The store cannot promise the durability asked for; nothing happened."""
class ShuttingDown(Unavailable): """This service process is going down; nothing happened."""
class OutcomeUnknown(Unavailable): """The store's answer was lost: it may or may not have happened."""
class DeadlineExceeded(HeadwayError): """No answer came in time: it may or may not have happened."""
class Unauthenticated(HeadwayError): """The caller gave no credentials that hold."""
class PermissionDenied(HeadwayError): """The caller's role does not allow the call."""
class NotImplementedByService(HeadwayError): """This version of the service does not serve the call or the field."""
class Internal(HeadwayError): """A defect of the service."""
# fmt: on


class MessageFinished(PreconditionFailed):
    """The message is finished, so it is too late."""

    @property
    def outcome(self) -> str:
        """How: DONE, DEAD, WITHDRAWN, EXPIRED, or UNKNOWN if a foreign client took it; "" if it is not told."""
        return self.metadata.get("outcome", "")


_UNKNOWN_CODES = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    )
)

_BY_REASON: dict[str, type[HeadwayError]] = {
    "QUEUE_NOT_FOUND": QueueNotFound,
    "QUEUE_EXISTS": QueueExists,
    "QUEUE_CLOSED": QueueClosed,
    "QUEUE_DRAINED": QueueDrained,
    "QUEUE_FULL": QueueFull,
    "QUEUE_DELETED": QueueDeleted,
    "QUEUE_PAUSED": QueuePaused,
    "ROLE_IN_USE": RoleInUse,
    "MESSAGE_NOT_FOUND": MessageNotFound,
    "MESSAGE_LEASED": MessageLeased,
    "MESSAGE_FINISHED": MessageFinished,
    "DUPLICATE_MESSAGE": DuplicateMessage,
    "LEASE_STALE": LeaseStale,
    "LEASE_GONE": LeaseGone,
    "POLL_TOO_SOON": PollTooSoon,
    "PLACE_LOST": PlaceLost,
    "NAME_REFUSED": NameRefused,
    "FIELD_INVALID": FieldInvalid,
    "TOO_LARGE": TooLarge,
    "STORE_UNAVAILABLE": StoreUnavailable,
    "STORE_FULL": StoreFull,
    "OUTCOME_UNKNOWN": OutcomeUnknown,
    "NOT_DURABLE": NotDurable,
    "SHUTTING_DOWN": ShuttingDown,
    "OVERLOADED": Overloaded,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "INTERNAL": Internal,
    "NOT_IMPLEMENTED": NotImplementedByService,
}

_BY_CODE: dict[grpc.StatusCode, type[HeadwayError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByService,
    grpc.StatusCode.INTERNAL: Internal,
}

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def error_class(reason_name: str, code: grpc.StatusCode) -> type[HeadwayError]:
    """The class for a reason (a name without its prefix); for one that is not known, the family of the code."""
    return _BY_REASON.get(reason_name) or _BY_CODE.get(code, HeadwayError)


def from_rpc_error(error: grpc.aio.AioRpcError) -> HeadwayError:
    """The typed error of a failed call; details that cannot be read leave the canonical code to speak."""
    code: grpc.StatusCode = error.code()
    reason_name, metadata, retry_after = "", dict[str, str](), None
    violations: list[Violation] = []
    for detail in _details(error.trailing_metadata() or ()):
        if isinstance(detail, error_details_pb2.ErrorInfo) and detail.domain == DOMAIN:
            reason_name, metadata = detail.reason, dict(detail.metadata)
        elif isinstance(detail, error_details_pb2.RetryInfo):
            retry_after = detail.retry_delay.ToTimedelta()
        elif isinstance(detail, error_details_pb2.BadRequest):
            violations += (Violation(v.field, v.description) for v in detail.field_violations)
    known = ErrorReason.DESCRIPTOR.values_by_name.get(_PREFIX + reason_name)
    return error_class(reason_name, code)(
        error.details() or code.name,
        code=code,
        reason=ErrorReason.ValueType(known.number) if known else ErrorReason.ERROR_REASON_UNSPECIFIED,
        metadata=metadata,
        retry_after=retry_after,
        violations=violations,
    )


def from_status(status: message_pb2.Status) -> HeadwayError:
    """The typed error of one message of a batch."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    name = ErrorReason.Name(status.reason).removeprefix(_PREFIX) if status.reason in ErrorReason.values() else ""
    return error_class(name, code)(
        status.message or code.name, code=code, reason=status.reason, metadata=status.metadata
    )


def _details(trailing: Iterable[tuple[str, str | bytes]]) -> Iterable[Message]:
    kinds = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest)
    for key, value in trailing:
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            packed = status_pb2.Status.FromString(value).details
            for kind in kinds:
                for item in packed:
                    if item.Is(kind.DESCRIPTOR):
                        detail = kind()
                        item.Unpack(detail)
                        yield detail
        except DecodeError:
            return
