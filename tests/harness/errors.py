"""What a failed call says on the wire, decoded for assertions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


@dataclass(slots=True, kw_only=True)
class WireError:
    """A status with its details. Absent details are empty; `retry_delay` is None without RetryInfo."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_delay: timedelta | None = None
    violations: dict[str, str] = field(default_factory=dict)  # BadRequest: field → description
    preconditions: list[tuple[str, str]] = field(default_factory=list)  # PreconditionFailure: (type, subject)
    quotas: list[str] = field(default_factory=list)  # QuotaFailure: subjects


def error_of(error: grpc.RpcError) -> WireError:
    """Decodes the google.rpc.Status of a failed call, sync or aio."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError), error
    found = WireError(code=error.code(), message=error.details() or "")
    status = rpc_status.from_call(cast(grpc.Call, error))  # an AioRpcError has what it reads of a Call
    if status is None:
        return found
    for packed in status.details:
        if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(packed.value)
            found.reason, found.domain, found.metadata = info.reason, info.domain, dict(info.metadata)
        elif packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            found.retry_delay = error_details_pb2.RetryInfo.FromString(packed.value).retry_delay.ToTimedelta()
        elif packed.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            request = error_details_pb2.BadRequest.FromString(packed.value)
            found.violations = {item.field: item.description for item in request.field_violations}
        elif packed.Is(error_details_pb2.PreconditionFailure.DESCRIPTOR):
            failure = error_details_pb2.PreconditionFailure.FromString(packed.value)
            found.preconditions = [(item.type, item.subject) for item in failure.violations]
        elif packed.Is(error_details_pb2.QuotaFailure.DESCRIPTOR):
            quota = error_details_pb2.QuotaFailure.FromString(packed.value)
            found.quotas = [item.subject for item in quota.violations]
    return found


@contextmanager
def refused(reason: str, code: grpc.StatusCode | None = None) -> Iterator[WireError]:
    """Expects the call inside to fail with this reason (and code); what was said is there after the block."""
    said = WireError()
    with pytest.raises(grpc.RpcError) as caught:
        yield said
    decoded = error_of(caught.value)
    for name in WireError.__slots__:
        setattr(said, name, getattr(decoded, name))
    assert said.reason == reason, said
    if code is not None:
        assert said.code is code, said
