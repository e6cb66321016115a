"""How every span of the service begins, and what its attributes look like. What it is about is told by `jobs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from headwayd.telemetry import names
from headwayd.telemetry.contexts import below, distinct

Attributes = Mapping[str, AttributeValue]
_NS_PER_MS = 1_000_000
_MOST_LINKS = 64  # of one span
_MOST_NAME = 200  # characters of a queue's name: a name that is refused may be of any length


def begin(
    tracer: Tracer,
    operation: str,
    queue: str,
    kind: SpanKind,
    attributes: Attributes,
    *,
    parent: SpanContext | None,
    links: Iterable[SpanContext],
    began_ns: int | None = None,
) -> Span:
    """A span of an operation on a queue; now, unless it began at another time."""
    if parent is not None and not parent.trace_flags.sampled:
        return NonRecordingSpan(parent)  # as the sampler would have it, at a tenth of the cost
    shown = queue[:_MOST_NAME]
    ours = {names.SYSTEM: names.OUR_SYSTEM, names.DESTINATION: shown, names.OPERATION_NAME: operation}
    return tracer.start_span(
        f"{operation} {shown}",
        context=below(parent),
        kind=kind,
        attributes=ours | dict(attributes),
        links=[Link(each) for each in links],
        start_time=began_ns,
        record_exception=False,  # whose text may hold what a caller wrote
        set_status_on_exception=False,
    )


def batch(count: int) -> int:
    """How many messages, if that makes it a batch: of one message it is not said."""
    return 0 if count == 1 else count


def counts(attributes: Mapping[str, int]) -> dict[str, AttributeValue]:
    """Those that are not 0."""
    return {name: count for name, count in attributes.items() if count}


def of_message(message_id: str, attempt: int, ticket: int) -> dict[str, AttributeValue]:
    """What names one message in a worker's hands."""
    return {names.MESSAGE_ID: message_id, names.ATTEMPT: attempt, names.TICKET: ticket}


def linked(jobs: Sequence[SpanContext | None]) -> list[SpanContext]:
    """What the span of a batch is linked to. Where some of it are of no trace the ratio decides, unless another one is
    recorded: those that are not have no say.
    """
    found = distinct(jobs, _MOST_LINKS)
    return [] if None in jobs and not any(each.trace_flags.sampled for each in found) else found


def only(jobs: Sequence[SpanContext | None]) -> SpanContext | None:
    """The one that all of them are; None if they differ, or one is missing."""
    found = distinct(jobs, 2)
    return found[0] if len(found) == 1 and None not in jobs else None


def add_moves(span: Span, moves: Sequence[tuple[int, int]]) -> None:
    """Events: where something stood in line (instant in ms, position)."""
    if span.is_recording():
        for at_ms, position in moves:
            span.add_event(names.MOVED, {names.POSITION: position}, timestamp=at_ms * _NS_PER_MS)


def fail(span: Span, reason: str) -> None:
    """It failed for this reason. That its caller went away is no error."""
    span.set_attribute(names.ERROR_TYPE, reason)
    if reason != names.CANCELLED:
        span.set_status(Status(StatusCode.ERROR))
