"""A message in my hands: settles it, and keeps its lease alive while I work on it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from headway._backoff import backoff_seconds
from headway._errors import HeadwayError, LeaseGone, LeaseStale
from headway._link import CallLink, Link
from headway._settle import delay_request
from headway._trace import context_of
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Delivery, Message, Settled, SettleResult

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from headway._keeping import Keeping
    from headway._queue import Queue

_log = logging.getLogger("headway")

_NOW = timedelta(0)
_GIVE_BACK_SECONDS = 5.0  # how long leaving a block may take that gives a message back; then the lease just lapses
_NO_SAY = (Settled.SETTLED_STALE, Settled.SETTLED_GONE)


class Lease:
    """The right to work on one message until a deadline.

    As a context manager it keeps itself alive (Extend at a third of its span) and settles the message at the end of the
    block, unless the block did: acked if the block ends cleanly; given to the queue's backoff, at the cost of an
    attempt, if it raises; given back at once and for free if it is cancelled. Leaving a clean block raises LeaseStale
    or LeaseGone if the ack came too late to count.

    Outside of `async with` nothing extends it: settle it within its span.
    """

    def __init__(
        self,
        queue: "Queue",
        delivery: Delivery,
        *,
        span: timedelta,
        is_old: bool = False,  # given to an earlier try of the call that brought it: it may lapse sooner
        on_end: Callable[[], None] | None = None,
        link: Link | None = None,  # default: by calls
        keeping: "Keeping | None" = None,  # who keeps it alive if it is to be; default: it does itself
    ) -> None:
        self.queue = queue
        self.delivery = delivery
        self.span = span
        self._is_old = is_old
        self._on_end = on_end
        self._link = link or CallLink(queue)
        self._keeping = keeping
        self._settled: Settled.ValueType | None = None
        self._is_lost = False
        self._lapses_at = _clock() + span.total_seconds()
        self._alive: AbstractAsyncContextManager[Lease] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._progress = 0.0  # as last told
        self._settling_count = 0  # calls under way whose answer ends it: what Extend says meanwhile does not count
        self._is_over = asyncio.Event()
        self._loss: HeadwayError | None = None  # found by the keep-alive and not told to anybody yet

    @property
    def message(self) -> Message:
        """The message itself."""
        return self.delivery.message

    @property
    def payload(self) -> bytes:
        """The message's body."""
        return self.delivery.message.payload

    @property
    def id(self) -> str:
        """The message's id."""
        return self.delivery.message.id

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.delivery.message.headers

    @property
    def trace_context(self) -> "Context | None":
        """The trace that the message was put in, to begin a span in; None if it carries none.

        Needs OpenTelemetry's API: `tracer.start_as_current_span("work", context=lease.trace_context)`.
        """
        return context_of(self.headers)

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1."""
        return self.delivery.attempt

    @property
    def ticket(self) -> int:
        """The message's number in its queue."""
        return self.delivery.ticket

    @property
    def token(self) -> str:
        """The lease as the service names it: opaque, to be kept secret."""
        return self.delivery.lease

    @property
    def is_settled(self) -> bool:
        """It was acked or given back through this handle, or found lost."""
        return self._settled is not None

    @property
    def is_lost(self) -> bool:
        """The service said that somebody else has, or had, the message: what is done with it now has no say."""
        return self._is_lost

    @property
    def lapses_at(self) -> float:
        """When it lapses if nothing extends it, by the event loop's clock, in seconds."""
        return self._lapses_at

    async def ack(self, result: bytes = b"") -> SettleResult:
        """Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it.

        Does not block. Raises LeaseStale or LeaseGone if this lease has no say any more.
        """
        with self._settling():
            return self.book(await self._link.ack(self.token, result))

    async def delay(
        self, delay: timedelta | datetime | None = None, *, reason: str = "", keep_attempt: bool = False
    ) -> SettleResult:
        """Gives the message back: by the queue's backoff, or after a span (0: now, at the head), or at an instant.

        Costs an attempt unless `keep_attempt`. `reason`, at most 1024 bytes, is kept with the message. Does not block.
        Raises LeaseStale or LeaseGone; but if an answer was lost, and the call was made again, it answers STALE or GONE
        without raising, for the first try has most likely done it.
        """
        request = delay_request(
            self.queue.name, leases=[self.token], delay=delay, reason=reason, keep_attempt=keep_attempt
        )
        with self._settling():
            answer = await self._link.delay(request)
            result = answer.response
            if answer.is_again and result.settled in _NO_SAY:
                self._end(result.settled)
                return result
            return self.book(result)

    @property
    def is_ending(self) -> bool:
        """It is settled, or somebody settles it just now."""
        return bool(self._settling_count) or self.is_settled

    @contextmanager
    def _settling(self) -> Iterator[None]:
        self._settling_count += 1
        try:
            yield
        finally:
            self._settling_count -= 1

    async def release(self) -> SettleResult:
        """Gives the message back to the head of the line, now and for free: it was not worked on."""
        return await self.delay(_NOW, keep_attempt=True)

    async def extend(
        self, lease: timedelta | None = None, *, progress: float | None = None, note: str = ""
    ) -> SettleResult:
        """Keeps the lease alive for `lease` (default: its span) from now; may tell watchers how far the work is.

        progress: 0.0 to 1.0; a note without it leaves it as it was last told through this handle.
        note: for people, at most 1024 bytes; progress without it has none.

        Does not block. Raises LeaseStale or LeaseGone.
        """
        return self.book(await self._extend(lease or self.span, progress, note))

    async def progress(self, fraction: float, note: str = "") -> SettleResult:
        """Tells watchers how far the work is, 0.0 to 1.0, and a word about it; extends the lease by its span as well.

        See `extend`. Raises LeaseStale or LeaseGone.
        """
        return await self.extend(progress=fraction, note=note)

    async def _extend(self, span: timedelta, progress: float | None = None, note: str = "") -> SettleResult:
        asked_at = _clock()
        if progress is not None:
            self._progress = progress
        elif note:
            progress = self._progress
        result = await self._link.extend(self.token, span, progress=progress, note=note)
        if result.settled == Settled.SETTLED_EXTENDED:
            self._lapses_at = asked_at + span.total_seconds()
        return result

    async def until_over(self) -> None:
        """Returns when the lease is settled or lost, or its time has run out with nothing extending it."""
        while not self._is_over.is_set() and self._lapses_at > _clock():
            try:
                async with asyncio.timeout_at(self._lapses_at):
                    await self._is_over.wait()
            except TimeoutError:
                continue  # unless it was extended meanwhile

    def book(self, result: SettleResult) -> SettleResult:
        """Notes what the service said of this lease. Raises LeaseStale or LeaseGone if it has no say any more."""
        if result.settled == Settled.SETTLED_EXTENDED:
            return result
        self._is_lost = result.settled in _NO_SAY
        self._end(result.settled)
        if result.settled == Settled.SETTLED_STALE:
            raise LeaseStale(
                f"the lease of message {self.id!r} is stale: somebody newer holds or held it",
                code=grpc.StatusCode.FAILED_PRECONDITION,
                reason=ErrorReason.ERROR_REASON_LEASE_STALE,
                metadata={"queue": self.queue.name},
            )
        if result.settled == Settled.SETTLED_GONE:
            raise LeaseGone(
                f"the lease of message {self.id!r} is gone, or its message or queue is",
                code=grpc.StatusCode.NOT_FOUND,
                reason=ErrorReason.ERROR_REASON_LEASE_GONE,
                metadata={"queue": self.queue.name},
            )
        return result

    def _end(self, settled: Settled.ValueType) -> None:
        self._settled = settled
        self._is_over.set()
        if self._on_end is not None:
            self._on_end()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[Self]:
        """Extends the lease while the block runs and does not settle it. A lease found lost sets `is_lost`."""
        if self._keeping is not None:
            with self._keeping.while_held(self):
                yield self
            return
        if self._keeper is not None and not self._keeper.done():
            yield self  # somebody who holds it longer does it already
            return
        keeper = self.keep_alive()
        try:
            yield self
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])

    def keep_alive(self) -> "asyncio.Task[None]":
        """Extends the lease until it is settled, found lost, or the task is cancelled; the caller owns the task."""
        self._keeper = asyncio.create_task(self._keep_alive())
        return self._keeper

    async def _keep_alive(self) -> None:
        pause = self.span.total_seconds() / 3
        failures = 0
        is_due = self._is_old
        while True:
            if not is_due:
                await asyncio.sleep(min(pause, backoff_seconds(failures)) if failures else pause)
            is_due = False
            if self.is_settled:
                return
            failures = 0 if await self.confirm(within=max(pause, 0.1)) else failures + 1

    async def confirm(self, *, within: float) -> bool:
        """Extends the lease and tells whether the service answered; what it said stands in `is_lost`.

        While somebody settles it there is nothing to ask: an Ack that overtakes the Extend would make it look lost.
        """
        if self.is_ending:
            return True
        try:
            async with asyncio.timeout(within):
                asked_at = _clock()
                self.hear(await self._extend(self.span), asked_at)
        except (HeadwayError, TimeoutError) as error:
            _log.warning("could not extend the lease of message %r: %s", self.id, str(error) or "no answer in time")
            return False
        return True

    def hear(self, result: SettleResult, asked_at: float) -> None:
        """Notes what the service said when it was asked, at that time, to extend it by its span."""
        if result.settled == Settled.SETTLED_EXTENDED:
            self._lapses_at = asked_at + self.span.total_seconds()
        if self.is_ending:
            return
        try:
            self.book(result)
        except (LeaseStale, LeaseGone) as error:
            self._loss = error
            _log.warning("%s", error)

    async def give_back(self, *, failed_with: str | None) -> None:
        """Gives the message back, to the queue's backoff with a reason, or, with None, now and for free.

        Takes 5 s at most and never raises HeadwayError: if the service does not answer, the lease lapses by itself.
        """
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                await (self.release() if failed_with is None else self.delay(reason=failed_with))
        except (HeadwayError, TimeoutError) as error:
            _log.warning("could not give message %r back: %s", self.id, str(error) or "no answer in time")

    async def __aenter__(self) -> Self:
        self._alive = self.kept_alive()
        await self._alive.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alive is not None:
            await self._alive.__aexit__(None, None, None)
        if error is None and self._loss is not None:
            raise self._loss
        if self.is_settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.give_back(failed_with=failure_reason(error))
        else:
            await self.give_back(failed_with=None)


def failure_reason(error: BaseException) -> str:
    """What is kept with a message whose work raised: the exception's type and not its text, which may hold secrets."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _clock() -> float:
    return asyncio.get_running_loop().time()
