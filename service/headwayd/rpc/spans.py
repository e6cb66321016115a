"""Milliseconds as the schema's spans and instants."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_NS_PER_MS = 1_000_000


def duration(span_ms: int) -> Duration:
    """A span that is not negative."""
    seconds, rest_ms = divmod(span_ms, 1_000)
    return Duration(seconds=seconds, nanos=rest_ms * _NS_PER_MS)


def timestamp(at_ms: int) -> Timestamp:
    """An instant, given in milliseconds since 1970."""
    seconds, rest_ms = divmod(at_ms, 1_000)
    return Timestamp(seconds=seconds, nanos=rest_ms * _NS_PER_MS)


def set_duration(target: Duration, span_ms: int) -> None:
    """The same into a field that is there already: half the cost, and it becomes set even if the span is 0."""
    target.seconds, rest_ms = divmod(span_ms, 1_000)
    target.nanos = rest_ms * _NS_PER_MS


def set_timestamp(target: Timestamp, at_ms: int) -> None:
    """The same for an instant."""
    target.seconds, rest_ms = divmod(at_ms, 1_000)
    target.nanos = rest_ms * _NS_PER_MS
