"""What every failed call becomes, and how it is read off the wire; the kinds of it are in `errors`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, NamedTuple

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2
from grpc import StatusCode as Code
from grpc.aio import AioRpcError

from headway.v1.error_reason_pb2 import ERROR_REASON_TOO_LARGE, ERROR_REASON_UNSPECIFIED, ErrorReason
from headway.v1.message_pb2 import PutResult, Status

# Codes without a reason of the service's: nobody knows whether the call took effect (P-UNKNOWN-1).
_UNKNOWN = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.UNKNOWN, Code.INTERNAL)


class Violation(NamedTuple):
    """One field that was refused, and why."""

    field: str
    description: str


@dataclass(eq=False, kw_only=True)
class HeadwayError(Exception):
    """A call, or one message of a batch, that failed.

    code: the canonical gRPC status.
    reason: the service's reason as a number of `ErrorReason`; 0 if the answer named none (the connection failed, or
    this client does not know the reason); TOO_LARGE if gRPC itself refused what is.
    metadata: what the reason promises, for example `queue`.
    retry_after: how long to wait before trying again, if the service said so.
    violations: the refused fields of an INVALID_ARGUMENT.
    results: of messages that are put in parts: the results of those before the part that failed.
    is_passing: the same call may succeed later without anybody changing it: the service is away, busy or paused.
    """

    message: str = field(kw_only=False)
    code: Code = Code.UNKNOWN
    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_UNSPECIFIED
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after: timedelta | None = None
    violations: Sequence[Violation] = ()
    results: Sequence[PutResult] = ()
    is_passing: ClassVar[bool] = True

    @property
    def reason_name(self) -> str:
        """The reason in words, for example "QUEUE_FULL"; "" if the answer named none."""
        return ErrorReason.Name(self.reason).removeprefix("ERROR_REASON_") if self.reason else ""

    @property
    def is_outcome_unknown(self) -> bool:
        """The call may or may not have taken effect; it is safe to repeat with the same ids and leases."""
        return self.reason == ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN or (not self.reason and self.code in _UNKNOWN)

    def __str__(self) -> str:
        text, label = self.message or self.code.name, self.reason_name or self.code.name
        return text if text.startswith(label) else f"{label}: {text}"


KINDS: dict[object, type[HeadwayError]] = {}  # by code and by reason, filled by `errors`


def from_rpc_error(error: AioRpcError) -> HeadwayError:
    """The typed error of a failed call; details that cannot be read leave the canonical code to speak."""
    told = info, retry, refused = details.ErrorInfo(), details.RetryInfo(), details.BadRequest()
    with suppress(DecodeError):
        sent = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        for detail in status_pb2.Status.FromString(sent).details:
            any(detail.Unpack(each) for each in told)  # the one whose kind it is
    # gRPC itself refuses what is larger by far than the service accepts, and gives no details (P-ERR-4).
    bare = ERROR_REASON_TOO_LARGE if error.code() is Code.RESOURCE_EXHAUSTED and not sent else ERROR_REASON_UNSPECIFIED
    reason = dict(ErrorReason.items()).get(f"ERROR_REASON_{info.reason}", bare) if info.domain == "headway.v1" else bare
    status = Status(code=error.code().value[0], message=error.details() or "", reason=reason, metadata=info.metadata)
    failed = from_status(status)
    failed.retry_after = retry.retry_delay.ToTimedelta() if retry.HasField("retry_delay") else None
    failed.violations = tuple(Violation(each.field, each.description) for each in refused.field_violations)
    return failed


def from_status(status: Status) -> HeadwayError:
    """The typed error of one message of a batch."""
    code = next((code for code in Code if code.value[0] == status.code), Code.UNKNOWN)
    kind = KINDS.get(status.reason) or KINDS.get(code, HeadwayError)
    return kind(status.message or code.name, code=code, reason=status.reason, metadata=dict(status.metadata))
