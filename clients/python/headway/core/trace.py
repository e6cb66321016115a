"""Carries the trace that a message belongs to in its headers, as W3C has it (`traceparent`, `tracestate`).

It needs no more than what the application itself uses: a span can be current only if somebody has imported
OpenTelemetry's API, so nothing is imported here before that.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.v1.message_pb2 import Message

if TYPE_CHECKING:
    from opentelemetry.context import Context

_PARENT = "traceparent"
_MOST_HEADERS, _DEFAULT_MOST_BYTES = 64, 1024 * 1024  # of a message; the operator may have set other bytes


def has_span() -> bool:
    """Whether a span is current, whose context a message may carry."""
    api = sys.modules.get("opentelemetry.trace")
    return api is not None and bool(api.get_current_span().get_span_context().is_valid)


def traced(message: Message, most_bytes: int = 0) -> Message:
    """The message with the current span's context in its headers; as it is if it has one or no span is current, or if
    it would be refused with that and not without: for its headers, or for more than `most_bytes` (0: the default).
    """
    if not has_span() or _PARENT in message.headers:
        return message
    found: dict[str, str] = {}
    _propagator().inject(found)
    if not found or _fits(message, {}, most_bytes) > _fits(message, found, most_bytes):
        return message
    copy = Message()
    copy.CopyFrom(message)
    copy.headers.update(found)
    return copy


def _fits(message: Message, more: Mapping[str, str], most_bytes: int) -> bool:
    """Whether the service takes it with these headers, too, by what it counts: payload, id and headers."""
    headers = {**message.headers, **more}
    size = len(message.payload) + sum(len(text.encode()) for text in (message.id, *headers, *headers.values()))
    return len(headers) <= _MOST_HEADERS and size <= (most_bytes or _DEFAULT_MOST_BYTES)


def context_of(headers: Mapping[str, str]) -> "Context | None":
    """The context that headers carry; None if they carry none, or OpenTelemetry's API is not installed."""
    if _PARENT not in headers:
        return None
    try:
        return _propagator().extract(headers)
    except ImportError:
        return None


if TYPE_CHECKING:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


def _propagator() -> "TraceContextTextMapPropagator":
    # W3C's whatever the application has set for its own calls: the headers' names are the protocol's.
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - an optional package
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator()
