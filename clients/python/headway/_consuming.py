"""Consumes: leases within a credit, as they come on a Consume stream, which is opened anew when it breaks."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from headway._consuming_stream import ConsumingStream, NotTold, StreamLink
from headway._keeping import Keeping
from headway._lease import Lease
from headway._outage import Outage
from headway.core.connecting import OF_CALLERS, span
from headway.core.error import HeadwayError
from headway.core.errors import QueueDrained, Unavailable
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery, SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue

_log = logging.getLogger("headway")

_END_SECONDS = 5.0  # how long a stream may take to answer the last settles and end; then it is cut
_NOW = timedelta(0)


class Consumer:
    """The leases of one worker. `start` it, take `next` until that is None, and `close` it in any case.

    A stream owns its leases: when it ends or breaks, those that are not settled are given back at once. Those that were
    handed out are asked after then, and `Lease.is_lost` tells; the others are forgotten here.
    """

    def __init__(
        self,
        queue: "Queue",
        *,
        credit: int,
        max_bytes: int,
        lease: timedelta | None,
        consumer: str,
        keeps: bool,
        on_end: Callable[[Lease], object] | None = None,
    ) -> None:
        self._queue = queue
        self._credit = credit
        self._max_bytes = max_bytes
        self._lease = lease
        self._consumer = consumer
        self._keeps = keeps  # alive what was handed out; else only what was not
        self._on_end = on_end  # called when a lease is settled or found lost
        self._span = _NOW  # of leases: what was asked for, else what the policy says, as was told last
        self._until = (0, 0)  # when what told it lapses
        self._most = 1  # leases in one step
        self._ready: deque[Lease] = deque()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._held: dict[Lease, ConsumingStream] = {}  # not settled, and the stream that brought it
        self._stream: ConsumingStream | None = None
        self._told_credit = pb.Credit()  # to that stream, last
        self._keeping: Keeping | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        self._has_ended = asyncio.Event()  # a lease has, or the stream
        self._is_over = False
        self._outage = Outage(queue.name)
        self._is_served = False  # on the stream of now
        self.is_begun = False  # the service has answered once
        self.error: Exception | None = None  # what ended it

    @property
    def is_idle(self) -> bool:
        """It has been served, and nothing is leased."""
        return self.is_begun and not (self._held or self._ready)

    def start(self) -> None:
        """Begins to consume."""
        self._tasks.append(asyncio.create_task(self._run()))

    async def next(self) -> Lease | None:
        """Waits for a lease; None if there will be no more: drained, stopped, or `error` says why."""
        while not self._ready:
            if self._is_over or self._stopped.is_set():
                return None
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            await getter
        lease = self._ready.popleft()
        if self._keeping is not None and not self._keeps:
            self._keeping.let_go(lease)
            self._forget_lapsed()
        return lease

    def _forget_lapsed(self) -> None:
        """Those that were handed out and never settled, now and then."""
        if len(self._held) > 2 * self._credit + len(self._ready):
            now = asyncio.get_running_loop().time()
            self._held = {lease: owner for lease, owner in self._held.items() if lease.lapses_at > now}

    def give_credit(self, credit: int) -> None:
        """How many may be leased at once from now on."""
        self._credit = credit
        self._tell_credit()

    def stop(self) -> None:
        """Leases no more, and gives back what was not handed out."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._tell_credit()
        self._release(list(self._ready))
        self._ready.clear()
        self._wake(len(self._getters))

    async def leave(self) -> None:
        """Leases no more, and leaves what was handed out to those who have it: the stream ends behind them."""
        self.stop()
        if self._held and self._stream is not None:
            await self._queue.client.leave_behind(self._close_behind_all())
        else:
            await self.close()

    async def _close_behind_all(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._stream is not None and (last := max((e.lapses_at for e in self._held), default=0.0)) > now():
                self._has_ended.clear()
                try:
                    async with asyncio.timeout_at(last):
                        await self._has_ended.wait()
                except TimeoutError:
                    continue  # unless it was extended meanwhile
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends the stream, when what was asked for on it is answered; what is still leased is given back by that."""
        self.stop()
        try:
            if self._stream is not None:
                self._stream.finish()
                await asyncio.wait(self._tasks[:1], timeout=_END_SECONDS)
        finally:  # as well if the client is closed meanwhile: else leases would be kept alive for ever
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    if await self._consume():
                        return
                    error: HeadwayError = Unavailable("the stream ended")
                except QueueDrained:
                    return
                except HeadwayError as raised:
                    if not (raised.is_passing or (self._is_served and isinstance(raised, OF_CALLERS))):
                        self.error = raised
                        return
                    error = raised
                if not self._stopped.is_set():
                    await self._pause(self._outage.pause_seconds(error))
        except Exception as defect:  # noqa: BLE001 - the loop's guard: whoever takes the leases raises it
            self.error = defect
        finally:
            self._is_over = True
            self._wake(len(self._getters))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def _consume(self) -> bool:
        """One stream, to its end. Whether there will be nothing more."""
        limits = await self._queue.client.limits()
        if self._keeping is None:
            self._span = await self._queue.policy_lease() if self._lease is None else self._lease
        if self._stopped.is_set():
            return True
        if self._keeping is None:
            self._keeping = Keeping(self._extend, lease=self._lease, longest=self._span, most=limits.max_batch_messages)
            self._tasks.append(asyncio.create_task(self._keeping.run()))
            self._queue.client.end_with(self._tasks[-1])
            self._most = limits.max_batch_messages
        self._told_credit = self._allowed(None)
        start = pb.ConsumeStart(
            queue=self._queue.name,
            consumer=self._consumer,
            lease=span(self._lease),
            credit=self._told_credit,
        )
        stream = ConsumingStream(self._queue, start, most=limits.max_batch_messages)
        longest_lease = max(self._span, limits.max_lease.ToTimedelta())
        link = StreamLink(stream, longest_lease=longest_lease, longest_delay=limits.max_delay.ToTimedelta())
        self._stream, self._is_served = stream, False
        try:
            return await stream.run(partial(self._told, stream, link))
        finally:
            self._stream = None
            self._has_ended.set()
            for lease in self._ready:  # they were this stream's, and are given back
                self._keeping.let_go(lease)
                self._held.pop(lease, None)
            self._ready.clear()
            self._keeping.ask_all()

    def _allowed(self, stream: ConsumingStream | None) -> pb.Credit:
        """The credit of this stream: what is held from an earlier one still counts."""
        now = asyncio.get_running_loop().time()
        others = sum(owner is not stream and lease.lapses_at > now for lease, owner in self._held.items())
        return pb.Credit(messages=max(0, self._credit - others), bytes=self._max_bytes)

    def _tell_credit(self) -> None:
        """If it is another than was told: leases of an earlier stream may have run out meanwhile."""
        if self._stream is not None:
            credit = pb.Credit() if self._stopped.is_set() else self._allowed(self._stream)
            if credit != self._told_credit:
                self._told_credit = credit
                self._stream.ask(pb.ConsumeRequest(credit=credit))

    def _told(self, stream: ConsumingStream, link: StreamLink, deliveries: Sequence[Delivery]) -> None:
        """Takes over what was delivered; nothing is a sign of life, too."""
        self._outage.over()
        self.is_begun = self._is_served = True
        if not deliveries:
            return
        now = asyncio.get_running_loop().time()
        leases = [self._leased(stream, link, each, now) for each in deliveries]
        if self._stopped.is_set():
            self._release(leases)
            return
        if self._keeping is not None:
            self._keeping.longest = max(self._keeping.longest, self._span)
            self._keeping.keep(leases)
        self._ready.extend(leases)
        self._wake(len(leases))

    def _leased(self, stream: ConsumingStream, link: StreamLink, delivery: Delivery, now: float) -> Lease:
        # What was given in one step, and so lapses at one time, lasts equally long: it is not read off each.
        expires_at = delivery.lease_expires_at
        until = (expires_at.seconds, expires_at.nanos)
        lease = Lease(
            self._queue,
            delivery,
            span=self._span,
            by_policy=self._lease is None and until != self._until,
            link=link,
            keeping=self._keeping,
            on_end=self._ended,
            since=now,
        )
        self._span = lease.span
        if not lease.is_old:
            self._until = until
        self._held[lease] = stream
        return lease

    def _ended(self, lease: Lease) -> None:
        if self._keeping is not None:
            self._keeping.let_go(lease)
        if self._held.pop(lease, self._stream) is not self._stream:
            self._tell_credit()
        self._has_ended.set()
        if self._on_end is not None:
            self._on_end(lease)

    def _wake(self, count: int) -> None:
        while count and self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                count -= 1

    def _release(self, leases: Sequence[Lease]) -> None:
        """Gives back for free what nobody has begun. If the stream breaks before that, it does the same."""
        for lease in leases:
            self._held.pop(lease, None)
            if self._keeping is not None:
                self._keeping.let_go(lease)
        tokens = [lease.token for lease in leases]
        while tokens and self._stream is not None:
            some, tokens = tokens[: self._most], tokens[self._most :]
            request = pb.DelayRequest(leases=some, delay=span(_NOW), keep_attempt=True)
            self._stream.ask(pb.ConsumeRequest(delay=request), some)

    async def _extend(self, tokens: Sequence[str], lease: timedelta | None) -> Sequence[SettleResult]:
        """On the stream; by a call if there is none, or if it ends over it."""
        if self._stream is not None:
            request = pb.ExtendRequest(leases=tokens, lease=span(lease))
            try:
                return await asyncio.gather(*self._stream.ask(pb.ConsumeRequest(extend=request), tokens))
            except NotTold:
                pass
        return await self._queue.extend(tokens, lease)
