"""A receiver of traces: OTLP over gRPC, as a collector speaks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from harness.conditions import eventually

Kind = trace_pb2.Span.SpanKind


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event of a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it was received; ids in hexadecimal, `parent_id` "" if it has none. `links` are (trace, span)."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: Sequence[tuple[str, str]]
    events: Sequence[SeenEvent]
    is_error: bool
    resource: Mapping[str, Any]

    @property
    def operation(self) -> str:
        """The name's first word."""
        return self.name.split(" ")[0]

    @property
    def place(self) -> tuple[str, str]:
        """What links to this span say."""
        return self.trace_id, self.span_id


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans that come between entering and leaving it. `refuses`: takes none, with this status. `raw` holds
    every request as it came."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.spans: list[SeenSpan] = []
        self.raw: list[bytes] = []
        self.refuses: grpc.StatusCode | None = None
        self.refused_count = 0
        self._address = address
        self._server = grpc.aio.server()

    @property
    def endpoint(self) -> str:
        """For `HEADWAY_OTLP_ENDPOINT`."""
        return f"http://{self._address}"

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Takes a batch."""
        if self.refuses is not None:
            self.refused_count += 1
            await context.abort(self.refuses, "as the test says")
        self.raw.append(request.SerializeToString())
        for resource in request.resource_spans:
            who = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_seen(span, who) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, operation: str) -> list[SeenSpan]:
        """The spans of one operation so far, in the order of their beginning."""
        return sorted((span for span in self.spans if span.operation == operation), key=lambda span: span.start_ns)

    async def until(self, operation: str, count: int = 1, *, within: float = 10) -> list[SeenSpan]:
        """The spans of one operation, once there are so many."""
        await eventually(lambda: len(self.named(operation)) >= count, within=within)
        return self.named(operation)

    async def __aenter__(self) -> Self:
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(self._address)
        self._address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


def _seen(span: trace_pb2.Span, resource: Mapping[str, Any]) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        events=[SeenEvent(each.name, each.time_unix_nano, _attributes(each.attributes)) for each in span.events],
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        resource=resource,
    )


def _attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
