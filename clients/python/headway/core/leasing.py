"""A message in my hands: settles it, and keeps its lease alive while I work on it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from headway.core.connecting import Connection, backoff_seconds, log, not_by_the_service, span
from headway.core.errors import HeadwayError, LeaseGone, LeaseStale
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SETTLED_EXTENDED, Delivery, Progress, Settled, SettleResult

# The results that say that a lease has no say any more: of any call, and of an Ack, which is too late for the dead.
# Of a Delay, DEAD says that it is done.
NO_SAY = {Settled.SETTLED_STALE: (LeaseStale, "is stale"), Settled.SETTLED_GONE: (LeaseGone, "is gone")}
ACK_NO_SAY = NO_SAY | {Settled.SETTLED_DEAD: (LeaseStale, "is over: the message is dead")}
_Span = timedelta | None  # None: what the policy says, or what is said where it is taken
SHORTEST = timedelta(milliseconds=100)  # taken for the policy's span where nobody knows it: of a foreign message


@dataclass(eq=False, repr=False)
class Lease:
    """The right to work on one message until a deadline. Outside of `held` and `kept_alive` nothing extends it.

    delivery: the message, its attempt, its ticket, and the lease's token.
    is_settled: it was acked or given back through this handle, found lost, or left to lapse because it could not be
    given back. is_ending: or that is under way.
    is_lost: the service said that somebody else has, or had, the message, or that it is dead: what is done with it now
    has no say. settled: how it was settled; None before, and if it was lost. Later calls answer that and do nothing.
    """

    connection: Connection
    queue_name: str
    delivery: Delivery
    span: timedelta
    is_old: bool = False  # given to an earlier try of the call that brought it: it may lapse sooner
    is_settled = is_ending = is_lost = False
    settled: SettleResult | None = field(default=None, init=False)
    _loss: Exception | None = field(default=None, init=False)  # found while kept alive, and nobody was told yet

    @classmethod
    async def get(
        cls, connection: Connection, queue_name: str, attempt_id: str = "", *, wait: _Span = None, lease: _Span = None
    ) -> Self | None:
        """Leases one message for the policy's span, or for `lease`; None if none came within `wait` (default: at once).

        If its answer is lost it is asked for again, and brings the same lease, which `held` extends at once. So does a
        later call with the `attempt_id` of one that failed (default: one that no other has); tell `held` of that. If it
        is cancelled what it may have leased is given back, which takes 5 s at most. Raises QueueNotFound, QueueDrained,
        QueueDeleted, QueuePaused, RoleInUse.
        """
        ask = pb.GetRequest(queue=queue_name, wait=span(wait), lease=span(lease), attempt_id=attempt_id or uuid4().hex)
        try:
            told = await connection.call(connection.queues.Get, ask, on_lost=(lost := asyncio.Event()).set)
        except asyncio.CancelledError:  # its answer may be on the way
            ask.ClearField("wait")
            with suppress(Exception):
                for each in (await connection.call(connection.queues.Get, ask, timeout=5.0)).deliveries:
                    await cls(connection, queue_name, each, SHORTEST).give_back(failed_with=None)
            raise
        got = (cls(connection, queue_name, it, lease or policy_span(it), lost.is_set()) for it in told.deliveries)
        return next(got, None)

    async def ack(self, result: bytes = b"") -> SettleResult:
        """Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it.

        Does not block, but is tried for as long as the lease may live while the service is away. Raises LeaseStale or
        LeaseGone if this lease has no say any more, for example because it lapsed with the last attempt and the message
        is dead. What is settled is not settled again, here and by `delay`: they answer how it was.
        """
        return await self.settle(pb.AckRequest(result=result), within=max(self.span, self.connection.call_timeout))

    async def delay(self, delay: _Span = None, *, reason: str = "", keep_attempt: bool = False) -> SettleResult:
        """Gives the message back: by the queue's backoff, or after a span (0: now, at the head).

        Costs an attempt unless `keep_attempt`. `reason`, at most 1024 bytes, is kept with the message. Does not block.
        Raises LeaseStale or LeaseGone; but if an answer was lost, and the call was made again, it answers STALE or GONE
        without raising, for the first try has most likely done it.
        """
        return await self.settle(pb.DelayRequest(delay=span(delay), reason=reason, keep_attempt=keep_attempt))

    async def progress(self, fraction: float, note: str = "") -> SettleResult:
        """Tells watchers how far the work is, 0.0 to 1.0, with a note of at most 1024 bytes; extends the lease, too.

        Does not block, and does nothing once the lease is settled. Raises LeaseStale or LeaseGone.
        """
        return await self.renew(progress=Progress(fraction=fraction, note=note))

    async def renew(self, lasts: _Span = None, progress: Progress | None = None) -> SettleResult:
        """Extends it, by default for its span; where nobody knows that, for as long as the policy says.

        What it is told while an Ack or a Delay is under way is no loss, for that may have overtaken it.
        """
        lease = span(lasts if lasts is not None or self.span is SHORTEST else self.span)
        request, was_lost = pb.ExtendRequest(lease=lease, progress=progress), self.is_lost
        result = self.settled or await self.ask(request)
        return self.book(result) if was_lost or not self.is_ending else result

    async def settle(self, request: pb.AckRequest | pb.DelayRequest, within: timedelta = timedelta()) -> SettleResult:
        """Makes a call that ends the lease, unless one has; see `ack` and `delay`, and `Connection.call`."""
        lost, is_ack, self.is_ending = list[bool](), isinstance(request, pb.AckRequest), True
        try:
            result = self.settled or await self.ask(request, within.total_seconds(), lambda: lost.append(True))
        finally:
            self.is_ending = self.is_settled
        # After a lost answer to a Delay they most likely say that it is done.
        return self.settled or self.book(result, ACK_NO_SAY if is_ack else {} if lost else NO_SAY)

    async def ask(self, request: Any, timeout: float = 0.0, on_lost: Callable[[], object] | None = None) -> Any:
        """Makes an Ack, a Delay or an Extend of this lease."""
        request.queue, request.leases[:] = self.queue_name, [self.delivery.lease]
        rpc = getattr(self.connection.queues, type(request).__name__.removesuffix("Request"))
        return (await self.connection.call(rpc, request, timeout=timeout, on_lost=on_lost)).results[0]

    def book(self, result: SettleResult, no_say: Mapping[Any, tuple[type[HeadwayError], str]] = NO_SAY) -> SettleResult:
        """Notes what the service said of this lease. Raises LeaseStale or LeaseGone for the results in `no_say`."""
        if result.settled != SETTLED_EXTENDED:
            self.is_lost, self.settled = (True, None) if result.settled in no_say else (False, result)
            self.end()
        if said := no_say.get(result.settled):
            raise said[0](f"the lease of {self.delivery.message.id!r} {said[1]}", metadata={"queue": self.queue_name})
        return result

    def end(self) -> None:
        """Notes that it is settled."""
        self.is_settled = self.is_ending = True

    async def confirm(self, *, within: float) -> bool:
        """Extends the lease and tells whether the service answered; what it said stands in `is_lost`."""
        try:
            async with asyncio.timeout(within):
                return bool(await self.renew())
        except Exception as error:  # noqa: BLE001 - the loop's guard: a token may be lacking for a while
            log.warning("could not extend the lease of message %r: %r", self.delivery.message.id, error)
            self._loss = error if self.is_lost else None
            return self.is_lost

    async def keep_alive(self, failures: int = 0) -> None:
        """Extends the lease at a third of its span until it is settled or lost; sooner after failures in a row."""
        third = self.span.total_seconds() / 3
        while not self.is_settled:
            await asyncio.sleep(min(third, backoff_seconds(failures)) if failures else third)
            failures = 0 if await self.confirm(within=max(third, 0.1)) else failures + 1

    @asynccontextmanager
    async def held(self, *, is_old: bool = False) -> AsyncIterator[Self]:
        """Keeps the lease alive while the block runs and settles the message at its end, unless the block did.

        is_old: an earlier Get of its name failed, and may have leased it: it is extended at once.

        It is acked if the block ends cleanly; given to the queue's backoff, at the cost of an attempt, if it raises or
        the ack fails; given back at once and for free if it is cancelled. A clean end raises LeaseStale or LeaseGone if
        the ack came too late to count.
        """
        keeper = asyncio.create_task(self.keep_alive(failures=int(is_old or self.is_old)))
        try:
            yield self
            if self._loss is not None:
                raise self._loss
            if not self.is_settled:
                await self.ack()
        except BaseException as error:
            await self.give_back(failed_with=failure_reason(error))
            raise
        finally:
            keeper.cancel()

    async def give_back(self, *, failed_with: str | None) -> None:
        """Gives the message back, unless it is settled: to the queue's backoff with a reason; None: now and for free.

        Takes 5 s at most and raises no Exception: if the service does not answer, the lease lapses by itself. Whoever
        keeps it alive, or acks at the end of the work, leaves it alone then.
        """
        now = timedelta(0) if failed_with is None else None
        try:
            async with asyncio.timeout(5.0):
                if not self.is_settled:
                    await self.delay(now, reason=failed_with or "", keep_attempt=failed_with is None)
        except Exception as error:  # noqa: BLE001 - somebody's guard: a token may be lacking for a while
            log.warning("could not give message %r back: %r", self.delivery.message.id, error)
            if not self.is_settled:
                self.end()


def policy_span(delivery: Delivery) -> timedelta:
    """How long the policy lets the lease last, as its delivery tells; SHORTEST if it does not: it is a foreign message,
    or given again and about to lapse.
    """
    # By the store's clock it was given when its message had waited so long.
    given = delivery.put_at.ToDatetime() + delivery.waited.ToTimedelta()
    return max(SHORTEST, delivery.lease_expires_at.ToDatetime() - given) if delivery.HasField("put_at") else SHORTEST


def failure_reason(error: BaseException) -> str | None:
    """What is kept with a message whose work raised: the exception's type and not its text, which may hold secrets.

    None if the work did not fail: its task was cancelled, or the generator that it belongs to was closed.
    """
    is_failure = isinstance(error, Exception | asyncio.CancelledError) and not_by_the_service(error) is not error
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.") if is_failure else None
