"""From the texts of W3C's Trace Context to OpenTelemetry's contexts, and back."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headwayd.domain.tracing import TRACEPARENT, TRACESTATE, Carried

_W3C = TraceContextTextMapPropagator()
_NOWHERE = Context()  # not the current one, which is a task's of ours and nobody's


def read(carried: Carried | None) -> SpanContext | None:
    """The context that the texts tell; None if they tell none."""
    if carried is None:
        return None
    found = get_current_span(_W3C.extract(carried._asdict(), _NOWHERE)).get_span_context()
    return found if found.is_valid else None


def written(context: SpanContext) -> Carried | None:
    """The texts of a context; None if it is that of no trace. Of the flags only whether it is recorded:
    OpenTelemetry for Go, as of 1.39, takes a traceparent with W3C's newer flag "random" (03) for none at all."""
    texts: dict[str, str] = {}
    flags = TraceFlags(context.trace_flags & TraceFlags.SAMPLED)
    plain = SpanContext(context.trace_id, context.span_id, context.is_remote, flags, context.trace_state)
    _W3C.inject(texts, below(plain))
    return Carried(texts[TRACEPARENT], texts.get(TRACESTATE, "")) if texts else None


def unsampled(context: SpanContext) -> SpanContext:
    """The same place in the same trace, below which nothing is recorded."""
    flags = TraceFlags(context.trace_flags & ~TraceFlags.SAMPLED)
    return SpanContext(context.trace_id, context.span_id, context.is_remote, flags, context.trace_state)


def below(parent: SpanContext | None) -> Context:
    """Where a span begins that has this parent, or none."""
    return _NOWHERE if parent is None else set_span_in_context(NonRecordingSpan(parent), _NOWHERE)


def distinct(contexts: Sequence[SpanContext | None], most: int) -> list[SpanContext]:
    """Each context once, in order, and no more than so many."""
    found: dict[tuple[int, int], SpanContext] = {}
    for each in contexts:
        if each is not None and len(found) < most:
            found.setdefault((each.trace_id, each.span_id), each)
    return list(found.values())
