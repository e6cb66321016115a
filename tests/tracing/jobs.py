"""Short words for jobs that are traced: contexts, and calls that carry one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from wire.calls import SLACK_S, Line, message, span


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has a span open, and records it or not."""

    is_sampled: bool = True
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02}"

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """For a call."""
        return (("traceparent", self.traceparent), ("tracestate", "vendor=opaque"))

    @property
    def headers(self) -> dict[str, str]:
        """For a message."""
        return {"traceparent": self.traceparent}


async def put(
    line: Line, *messages: bytes | message_pb2.Message, caller: Caller | None = None, **fields: object
) -> pb.PutResponse:
    """Puts a batch, by a call that carries the caller's context, if there is one."""
    request = pb.PutRequest(queue=line.name, messages=[message(one) for one in messages], **fields)  # type: ignore[arg-type]
    return await line.stub.Put(request, timeout=SLACK_S, metadata=caller.metadata if caller else None)


async def take(line: Line, *, caller: Caller | None = None, **fields: object) -> message_pb2.Delivery:
    """Leases one message."""
    request = pb.GetRequest(queue=line.name, wait=span(5_000), **fields)  # type: ignore[arg-type]
    answer = await line.stub.Get(request, timeout=SLACK_S, metadata=caller.metadata if caller else None)
    (delivery,) = answer.deliveries
    return delivery
