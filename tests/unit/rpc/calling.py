"""Short words for the tests of calls."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc

QueueStub: TypeAlias = "queue_service_pb2_grpc.QueueServiceAsyncStub"
AdminStub: TypeAlias = "admin_service_pb2_grpc.AdminServiceAsyncStub"


def at(ms: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(ms)
    return stamp


async def answer_of(call: Any) -> Any:
    """The reply, or all replies of a stream."""
    return await call if isinstance(call, grpc.aio.UnaryUnaryCall) else [reply async for reply in call]
