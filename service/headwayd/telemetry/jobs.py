"""The spans of a job: Put, Wait, Work, and the calls that take and settle. How they hang together: docs/tracing.md.

Where they belong: to the caller's span if the call came with one, else to the job's trace if the call is about one job.
What it is about besides it is linked to. A repeated delivery gets a trace of its own, or its caller's, linked to the
job's. Most spans are made when all is known and nothing is left open: so nothing is lost to a call that never ends, and
an empty Get leaves no span.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_CONTEXT,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
)

from headwayd.domain.model import Settled, Settlement
from headwayd.domain.tracing import Carried, Handed
from headwayd.telemetry import names
from headwayd.telemetry.contexts import read, written
from headwayd.telemetry.harmless import harmless
from headwayd.telemetry.making import Attributes, add_moves, batch, begin, counts, fail, linked, of_message, only
from headwayd.telemetry.places import Places
from headwayd.telemetry.sampling import Chance
from headwayd.telemetry.works import Work, Works

log: Any = structlog.get_logger(__name__)

_NS_PER_MS = 1_000_000
_MOST_FOLLOWED = 100  # messages of one reply that get spans of their own: each takes this process about 0.1 ms
_MOST_WORKS = 20_000
_MOST_PLACES = 10_000
_LOOK_S = 1.0  # how often leases are looked for that nobody ended

_SETTLING = frozenset({"Ack", "Delay", "Extend"})


class _PutSpan:
    def __init__(self, jobs: Jobs, span: Span, queue: str, lent: SpanContext, *, is_for_bare: bool) -> None:
        self._jobs = jobs
        self._span = span
        self._queue = queue
        # What nobody decided about and was not chosen is not worth writing down.
        self.carries: Carried | None = written(lent) if is_for_bare or lent.trace_flags.sampled else None
        self.is_for_bare = is_for_bare

    @harmless
    def done(self, results: Sequence[tuple[str, int]], *, deduplicated: int, refused: int) -> None:
        span = self._span
        if span.is_recording():
            if len(results) == 1:
                ((message_id, position),) = results
                span.set_attributes({names.MESSAGE_ID: message_id} | counts({names.POSITION: position}))
            span.set_attributes(counts({names.DEDUPLICATED: deduplicated, names.REFUSED: refused}))
            now_ms = self._jobs.now_ns() // _NS_PER_MS
            for message_id, position in results[:_MOST_FOLLOWED]:
                if position:
                    self._jobs.moved(self._queue, message_id, now_ms, position)
        span.end()

    @harmless
    def failed(self, reason: str) -> None:
        fail(self._span, reason)
        self._span.end()


class Jobs:
    """Makes the spans, by `tracer`, whose sampler has this `ratio`. Belongs to one event loop."""

    def __init__(self, tracer: Tracer, *, ratio: float) -> None:
        self._tracer = tracer
        self._chance = Chance(ratio)
        self._works = Works(_MOST_WORKS)
        self._places = Places(_MOST_PLACES)
        self._look: asyncio.TimerHandle | None = None

    def now_ns(self) -> int:
        """This machine's clock."""
        return time.time_ns()

    def put(self, operation: str, queue: str, *, caller: Carried | None, carried: Sequence[Carried | None]) -> _PutSpan:
        """A batch begins to be put. Our clients say whose it is in the messages, others in the call's metadata."""
        try:
            return self._put(operation, queue, caller=caller, carried=carried)
        except Exception:  # as with `harmless`
            log.exception("a defect of tracing")
            return _PutSpan(self, INVALID_SPAN, queue, INVALID_SPAN_CONTEXT, is_for_bare=False)

    def _put(
        self, operation: str, queue: str, *, caller: Carried | None, carried: Sequence[Carried | None]
    ) -> _PutSpan:
        parent = read(caller)
        theirs = [read(each) for each in dict.fromkeys(carried)]
        links = linked(theirs)
        if parent is None and (parent := only(theirs)) is not None:
            links = []
        span = begin(
            self._tracer,
            operation,
            queue,
            SpanKind.PRODUCER,
            {names.OPERATION_TYPE: names.SEND} | counts({names.BATCH_COUNT: batch(len(carried))}),
            parent=parent,
            links=links,
        )
        context = span.get_span_context()
        lent = context if parent is not None else self._chance.below(context, None)
        return _PutSpan(self, span, queue, lent, is_for_bare=read(caller) is not None)

    @harmless
    def handed(
        self,
        operation: str,
        queue: str,
        messages: Sequence[Handed],
        *,
        began_ns: int | None,
        caller: Carried | None,
        places: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A call hands out messages: its own span, and for each message the wait that is over and the work that begins.
        Those that were handed out before, because the call was repeated, are passed over."""
        messages = [message for message in messages if message.lease not in self._works]
        if not messages:
            return
        jobs = [read(message.carried) for message in messages]
        now_ns = self.now_ns()
        if began_ns is None:
            began_ns = min([now_ns, *(each.leased_at_ms * _NS_PER_MS for each in messages if each.leased_at_ms)])
        is_first = all(message.attempt <= 1 for message in messages)
        attributes = {names.OPERATION_TYPE: names.RECEIVE} | counts({names.BATCH_COUNT: batch(len(messages))})
        if len(messages) == 1:
            attributes |= of_message(messages[0].id, messages[0].attempt, messages[0].ticket)
        parent = read(caller) or (only(jobs) if is_first else None)
        span = begin(
            self._tracer,
            operation,
            queue,
            SpanKind.CONSUMER,
            attributes,
            parent=parent,
            links=linked(jobs),
            began_ns=began_ns,
        )
        add_moves(span, places)
        span.end(now_ns)
        taken = span.get_span_context()
        for message, job in zip(messages[:_MOST_FOLLOWED], jobs, strict=False):
            self._follow(queue, message, job, taken if parent else self._chance.below(taken, job), now_ns)

    def _follow(self, queue: str, message: Handed, job: SpanContext | None, taken: SpanContext, now_ns: int) -> None:
        is_jobs_own = job is not None and message.attempt <= 1
        work = Work(
            queue=queue,
            message_id=message.id,
            attempt=message.attempt,
            ticket=message.ticket,
            leased_at_ns=now_ns if message.leased_at_ms is None else message.leased_at_ms * _NS_PER_MS,
            expires_at_ms=message.expires_at_ms,
            parent=job if job is not None and is_jobs_own else taken,
            job=None if is_jobs_own else job,
        )
        self._works.add(message.lease, work)
        self._look_later()
        moves = self._places.take(queue, message.id)
        if message.put_at_ms is None:
            return
        wait = self._begin_of(work, names.WAIT, {}, message.put_at_ms * _NS_PER_MS)
        add_moves(wait, [(max(at_ms, message.put_at_ms), position) for at_ms, position in moves])
        wait.end(work.leased_at_ns)

    @harmless
    def settled(
        self, operation: str, queue: str, settlements: Sequence[Settlement], *, began_ns: int, caller: Carried | None
    ) -> None:
        """A call settled leases: the work on them is over, or goes on if they were extended, which leaves no span."""
        parents: list[SpanContext] = []
        ended = [each for each in settlements if each.settled is not Settled.EXTENDED]
        for each in settlements:
            if each.settled is Settled.EXTENDED:
                self._works.extend(each.lease, each.available_at_ms)
            elif (work := self._works.take(each.lease)) is not None:
                parents.append(self._end(work, each.settled.name).get_span_context())
        if not ended:
            return
        span = begin(
            self._tracer,
            operation,
            queue,
            SpanKind.SERVER,
            {names.OPERATION_TYPE: names.SETTLE, names.SETTLED: sorted({each.settled.name for each in ended})}
            | counts({names.BATCH_COUNT: batch(len(ended))}),
            parent=read(caller) or (parents[0] if len(parents) == 1 else None),
            links=linked(parents),
            began_ns=began_ns,
        )
        span.end()

    @harmless
    def failed(self, operation: str, queue: str, reason: str, *, began_ns: int, caller: Carried | None) -> None:
        """A call that takes or settles failed."""
        kind, what = SpanKind.CONSUMER, names.RECEIVE
        if operation in _SETTLING:
            kind, what = SpanKind.SERVER, names.SETTLE
        attributes = {names.OPERATION_TYPE: what}
        span = begin(self._tracer, operation, queue, kind, attributes, parent=read(caller), links=(), began_ns=began_ns)
        fail(span, reason)
        span.end()

    @harmless
    def ended(self, leases: Iterable[str]) -> None:
        """The stream that had these leases is over."""
        for lease in leases:
            if (work := self._works.take(lease)) is not None:
                self._end(work, names.STREAM_ENDED)

    @harmless
    def moved(self, queue: str, message_id: str, at_ms: int, position: int) -> None:
        """A waiting message stood there then."""
        self._places.note(queue, message_id, at_ms, position)

    def close(self) -> None:
        """Ends what is left: this process will not see how."""
        if self._look is not None:
            self._look.cancel()
        for work in self._works.rest():
            self._end(work, names.UNSEEN)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self._look = None
        for work in self._works.overdue(self.now_ns() // _NS_PER_MS):
            self._end(work, names.UNSEEN, at_ns=work.expires_at_ms * _NS_PER_MS)
        if len(self._works):
            self._look_later()

    def _end(self, work: Work, how: str, *, at_ns: int | None = None) -> Span:
        attributes = {names.OPERATION_TYPE: names.PROCESS, names.SETTLED: how}
        span = self._begin_of(
            work, names.WORK, attributes | counts({names.EXTENDED: work.extended_count}), work.leased_at_ns
        )
        if how == Settled.DEAD.name:
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(at_ns or self.now_ns(), work.leased_at_ns))
        return span

    def _begin_of(self, work: Work, name: str, attributes: Attributes, began_ns: int) -> Span:
        return begin(
            self._tracer,
            name,
            work.queue,
            SpanKind.INTERNAL,
            of_message(work.message_id, work.attempt, work.ticket) | dict(attributes),
            parent=work.parent,
            links=() if work.job is None else (work.job,),
            began_ns=began_ns,
        )
