"""What is known of a job's trace: the context that a message or a call carries, and messages as they were handed out.

A context is the two texts of W3C's Trace Context (https://www.w3.org/TR/trace-context/). Nothing here reads them: that
is for `telemetry`, the only part that knows OpenTelemetry.
"""

from __future__ import annotations

from typing import NamedTuple

# The names under which a context stands in a message's headers and in a call's metadata.
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


class Carried(NamedTuple):
    """A trace context as text, good or not: whoever wrote it was not checked."""

    traceparent: str
    tracestate: str = ""


class Handed(NamedTuple):
    """A message as it was handed to a worker, without its payload. The instants are the store's; `put_at_ms` and
    `leased_at_ms` are None if nobody knows when it was put."""

    id: str
    lease: str
    attempt: int
    ticket: int
    put_at_ms: int | None
    leased_at_ms: int | None
    expires_at_ms: int
    carried: Carried | None
