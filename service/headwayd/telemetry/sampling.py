"""Which jobs are recorded: what its caller decided, else what was decided for the messages that it is about, else a
ratio."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from headwayd.telemetry.contexts import unsampled


class _LinkedOrRatio(Sampler):
    """For spans without a parent: a repeated delivery, or a batch of several jobs, belongs to whom it is linked to."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def should_sample(  # noqa: PLR0917 - as the SDK has it
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if links:
            is_one_sampled = any(link.context.trace_flags.sampled for link in links)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if is_one_sampled else Decision.DROP, attributes)
        return self._ratio.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"LinkedOrRatio{{{self._ratio.get_description()}}}"


class Chance:
    """What the ratio says of jobs that nobody has decided about."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def below(self, batch: SpanContext, job: SpanContext | None) -> SpanContext:
        """The parent of what is told of one message of a batch that has no caller's span above it: `job` is what the
        message carries. The batch is recorded if one job in it is; that decides nothing about the others.
        """
        if not batch.trace_flags.sampled:
            return batch
        if job is None:
            is_recorded = self._ratio.should_sample(None, batch.trace_id, "").decision is Decision.RECORD_AND_SAMPLE
        else:
            is_recorded = job.trace_flags.sampled
        return batch if is_recorded else unsampled(batch)


def sampler(ratio: float) -> Sampler:
    """`ratio` is the share of jobs that are recorded among those that nobody has decided about."""
    return ParentBased(root=_LinkedOrRatio(ratio))
