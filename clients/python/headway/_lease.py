"""A message in my hands: the core's lease, with what the client knows of it besides."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from google.protobuf.timestamp_pb2 import Timestamp

from headway._spans import available
from headway.core import leasing
from headway.core.connecting import Connection, log
from headway.core.errors import ClientClosed, LeaseGone, LeaseStale
from headway.core.leasing import policy_span
from headway.core.trace import context_of
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SETTLED_EXTENDED, Delivery, Message, Progress, SettleResult

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from headway._keeping import Keeping
    from headway._queue import Queue

_NOW = timedelta(0)
_CONFIRM_SECONDS = 0.1  # what an extension may take at least


class Link(Protocol):
    """Another way to the service than by calls, on which one lease is settled and kept alive."""

    def ack(self, token: str, answered: Callable[[SettleResult | None, bool], object]) -> None:
        """Makes an Ack without a result, and tells later what was said; None if that is to be done by a call."""

    async def ask(self, request: Any, on_lost: Callable[[], object] | None) -> SettleResult | None:
        """Makes an Ack, a Delay or an Extend; None if that is to be done by a call. `on_lost`: it may be done."""

    def forget(self, request: Any) -> None:
        """It has been done by a call."""


class Lease(leasing.Lease):
    """The right to work on one message until a deadline.

    As a context manager it keeps itself alive (Extend at a third of its span) and settles the message at the end of the
    block, unless the block did: acked if the block ends cleanly; given to the queue's backoff, at the cost of an
    attempt, if it raises or the ack fails; given back at once and for free if it is cancelled. Leaving a clean block
    raises LeaseStale or LeaseGone if the ack came too late to count.

    Outside of `async with` nothing extends it: settle it within its span.
    """

    def __init__(
        self,
        queue: "Queue",
        delivery: Delivery,
        *,
        span: timedelta,
        by_policy: bool = False,  # it was asked to last as the policy says; `span` is for what does not tell how long
        is_old: bool = False,  # given to an earlier try of the call that brought it: it may lapse sooner
        on_end: "Callable[[Lease], object] | None" = None,
        link: Link | None = None,  # default: by calls
        keeping: "Keeping | None" = None,  # who keeps it alive if it is to be; default: it does itself
        since: float | None = None,  # when it came, by the event loop's clock; default: now
    ) -> None:
        told = policy_span(delivery) if by_policy and not is_old else leasing.SHORTEST
        is_told = told is not leasing.SHORTEST
        # Where it has to be guessed it may lapse sooner, too.
        is_old = is_old or (by_policy and not is_told)
        super().__init__(queue.client.connection, queue.name, delivery, told if is_told else span, is_old)
        self.queue = queue
        self._on_end = on_end
        self._link = link
        self._keeping = keeping
        self._lapses_at = (_clock() if since is None else since) + self.span.total_seconds()
        self._ahead: float | None = None  # our clock of the store's; most leases need not know
        self._holding: AbstractAsyncContextManager[Lease] | None = None
        self._is_kept_alive = False
        self._progress = 0.0  # as last told
        self._over: asyncio.Event | None = None

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
    def lapses_at(self) -> float:
        """When it lapses if nothing extends it, by the event loop's clock, in seconds."""
        return self._lapses_at

    @property
    def due_at(self) -> float:
        """When it is extended if it is kept alive, by the same clock: at once if it may lapse sooner than that."""
        return 0.0 if self.is_old else self._lapses_at - self.span.total_seconds() * 2 / 3

    async def delay(
        self, delay: timedelta | datetime | None = None, *, reason: str = "", keep_attempt: bool = False
    ) -> SettleResult:
        """Gives the message back: by the queue's backoff, or after a span (0: now, at the head), or at an instant.

        Costs an attempt unless `keep_attempt`. `reason`, at most 1024 bytes, is kept with the message. Does not block.
        Raises LeaseStale or LeaseGone; but if an answer was lost, and the call was made again, it answers STALE or GONE
        without raising, for the first try has most likely done it.
        """
        after, until = available(delay)
        return await self.settle(pb.DelayRequest(delay=after, until=until, reason=reason, keep_attempt=keep_attempt))

    async def release(self) -> SettleResult:
        """Gives the message back to the head of the line, now and for free: it was not worked on."""
        return await self.delay(_NOW, keep_attempt=True)

    async def extend(
        self, lease: timedelta | None = None, *, progress: float | None = None, note: str = ""
    ) -> SettleResult:
        """Keeps the lease alive for `lease` (default: its span) from now; may tell watchers how far the work is.

        progress: 0.0 to 1.0; a note without it leaves it as it was last told through this handle.
        note: for people, at most 1024 bytes; progress without it has none.

        Does not block, and does nothing once the lease is settled. Raises LeaseStale or LeaseGone.
        """
        if progress is None and not note:
            return await self.renew(lease)
        self._progress = self._progress if progress is None else progress
        return await self.renew(lease, Progress(fraction=self._progress, note=note))

    async def progress(self, fraction: float, note: str = "") -> SettleResult:
        """Tells watchers how far the work is, 0.0 to 1.0, and a word about it; extends the lease by its span as well.

        See `extend`. Raises LeaseStale or LeaseGone.
        """
        return await self.extend(progress=fraction, note=note)

    async def ask(
        self, request: Any, timeout: float = 0.0, on_lost: Callable[[], object] | None = None
    ) -> SettleResult:
        """Makes an Ack, a Delay or an Extend of this lease, on the stream that brought it if it can."""
        asked_at = _clock()
        result = None
        if self._link is not None:
            request.leases[:] = [self.token]
            result = await self._link.ask(request, on_lost)
        if result is None:
            result = await super().ask(request, timeout, on_lost)
            if self._link is not None:
                self._link.forget(request)
        if result.settled == SETTLED_EXTENDED:
            self.is_old = False
            self._note_end(asked_at, request.lease.ToTimedelta(), result.available_at)
        return result

    def ack_soon(self, answered: "Callable[[Self, SettleResult | None], object]") -> bool:
        """Asks that it be acked, on the stream that brought it, and waits for nothing; False if there is none.

        What was said is told later and goes to `note_acked`; None: the stream is over, and it is to be done by a call.
        """
        if self._link is None:
            return False

        def told(result: SettleResult | None, _is_sent: bool) -> None:
            self.is_ending = self.is_settled
            answered(self, result)

        self.is_ending = True
        self._link.ack(self.token, told)
        return True

    def note_acked(self, result: SettleResult) -> None:
        """Notes the answer to `ack_soon`, unless it is settled otherwise. Raises LeaseStale or LeaseGone."""
        if self.settled is None:
            self.book(result, leasing.ACK_NO_SAY)

    async def until_over(self) -> None:
        """Returns when the lease is settled or lost, or its time has run out with nothing extending it."""
        while not self.is_settled and self._lapses_at > _clock():
            try:
                async with asyncio.timeout_at(self._lapses_at):
                    await self.until_ended()
            except TimeoutError:
                continue  # unless it was extended meanwhile

    async def until_ended(self) -> None:
        """Returns when the lease is settled or lost, however late: until then an ack may count."""
        if not self.is_settled:
            self._over = self._over or asyncio.Event()  # most leases are waited for by nobody
            await self._over.wait()

    def end(self) -> None:
        """Notes that it is settled."""
        super().end()
        if self._over is not None:
            self._over.set()
        if self._on_end is not None:
            self._on_end(self)

    def hear(self, result: SettleResult, asked_at: float, span: timedelta | None, longest: timedelta) -> None:
        """Notes what the service said when it was asked, at that time, to extend it by that span: its own from now.

        None: by the policy's, which is no longer than `longest`.
        """
        if result.settled == SETTLED_EXTENDED:
            self.is_old = False
            if span is None:
                self.span = self._policy_span(result, asked_at, longest)
                self._lapses_at = asked_at + self.span.total_seconds()
            else:
                self.span = span
                self._note_end(asked_at, span, result.available_at)
        if self.is_ending:
            return
        try:
            self.book(result)
        except (LeaseStale, LeaseGone) as error:
            self._loss = error
            log.warning("%s", error)

    def _note_end(self, since: float, span: timedelta, until: Timestamp) -> None:
        """Notes when it lapses by our clock, and by the store's."""
        self._lapses_at = since + span.total_seconds()
        self._ahead = self._lapses_at - _seconds(until)  # our clock of the store's

    def _policy_span(self, result: SettleResult, asked_at: float, longest: timedelta) -> timedelta:
        """How long it lasts since then, as the answer tells; as before where the store's clock was put far back."""
        if self._ahead is None:  # it was not extended yet, and lapses as its delivery told
            self._ahead = self._lapses_at - _seconds(self.delivery.lease_expires_at)
        left = timedelta(seconds=_seconds(result.available_at) + self._ahead - asked_at)
        return min(max(left, leasing.SHORTEST), longest) if left > _NOW else self.span

    async def keep_alive(self, failures: int = 0) -> None:
        """Extends the lease until it is settled or found lost, unless somebody who holds it longer does so already."""
        if self._keeping is not None:
            with self._keeping.while_held(self):
                await self.until_ended()
        elif not self._is_kept_alive:
            self._is_kept_alive = True
            try:
                within = max(self.span.total_seconds() / 3, _CONFIRM_SECONDS)
                failures = int(self.is_old and not await self.confirm(within=within))
                await super().keep_alive(failures)
            finally:
                self._is_kept_alive = False

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[Self]:
        """Extends the lease while the block runs and does not settle it. A lease found lost sets `is_lost`."""
        self._note_held()
        keeper = asyncio.create_task(self.keep_alive())
        try:
            yield self
        finally:
            self.queue.client.held.discard(self)
            keeper.cancel()
            await asyncio.wait([keeper])

    async def give_up(self, connection: Connection) -> None:
        """Gives the message back by another connection, for its own is closed; whoever holds it raises ClientClosed."""
        self.is_lost, self._loss = True, ClientClosed("the connection was closed")
        self.end()  # first: what ends over the close would give it back as well, and at a cost
        await leasing.Lease(connection, self.queue_name, self.delivery, self.span).give_back(failed_with=None)

    def _note_held(self) -> None:
        if self._link is None:
            self.queue.client.held.add(self)

    async def __aenter__(self) -> Self:
        self._note_held()
        self._holding = self.held()
        await self._holding.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._holding is not None:
                await self._holding.__aexit__(kind, error, trace)
        finally:
            self.queue.client.held.discard(self)


def _seconds(at: Timestamp) -> float:
    return at.seconds + at.nanos / 1e9


def _clock() -> float:
    return asyncio.get_running_loop().time()
