"""What is known of a job's trace: the context that a message or a call carries, messages as they were handed out, and
where they stood before.

A context is the two texts of W3C's Trace Context (https://www.w3.org/TR/trace-context/). Nothing here reads them: that
is for `telemetry`, the only part that knows OpenTelemetry.
"""

from __future__ import annotations

from typing import NamedTuple

# The names under which a context stands in a message's headers and in a call's metadata.
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
CANCELLED = "CANCELLED"  # why a call failed whose caller went away, beside the names of reasons
MOST_MOVES = 32  # instants and positions, of one message or of one who waits


def thinned(moves: list[tuple[int, int]]) -> None:
    """Drops every second of too many, but never the first, where it began, nor the last."""
    if len(moves) > MOST_MOVES:
        del moves[1:-1:2]


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
