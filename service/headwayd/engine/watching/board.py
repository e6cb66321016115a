"""A queue's numbers, shown to all who watch them in this process by one reader. It reads only when somebody is ready to
be shown something, and something may have changed; and when the queue may be no more, which everybody is told at once.

A queue that was made anew is another one, though it has the same name: whoever was told of the old one has seen its
end, and whoever was told nothing yet begins with the new one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from headwayd.domain.errors import HeadwayError, InternalError, NotThere, QueueDeleted
from headwayd.domain.model import Queue
from headwayd.domain.watching import ToldQueue
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.estimates import Estimator
from headwayd.engine.watching.trouble import SHORT_PAUSE_S, TROUBLE_PAUSE_S, look_budget_s, may_pass, of_a_look, silent

READ_EVERY_S = 0.1
READ_AT_LEAST_EVERY_S = 9.0  # what time alone changes (rates, the age of the oldest) is news so often
CHECK_EVERY_S = 1.0  # at most, whether there is still a queue, while nobody is ready
_SHOWN_AT_ONCE, _BETWEEN_SHOWS_S = 10, 0.005
_ENDED_AT_ONCE = 20  # in one turn of the loop: most of what it costs is done by those who are ended, in the next ones
log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Watch:
    """One stream. `next`, if it is not done, is to be shown what is newer than number `seen`."""

    until: float | None  # when it must have been shown something at the latest; None once it has
    generation: str = ""  # the queue's, when it was shown last; "" = it was shown nothing yet
    seen: int = 0
    next: asyncio.Future[ToldQueue] | None = None
    why: Callable[[], HeadwayError] | None = None  # it ends, with this: it is shown nothing more
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def is_open_to(self, number: int) -> bool:
        """Whether it is to be shown what has this number."""
        return self.why is None and self.next is not None and not self.next.done() and self.seen < number

    def show(self, number: int, told: ToldQueue) -> None:
        assert self.next is not None
        self.seen, self.generation, self.until = number, told.queue.generation, None
        self.next.set_result(told)

    def end(self) -> None:
        """Has it learn of that, if it waits for anything."""
        assert self.why is not None
        if not self.over.done():
            self.over.set_result(None)
        if self.next is not None and not self.next.done():
            self.next.set_exception(self.why())


class Board:
    """The numbers of one queue. Belongs to one event loop."""

    def __init__(self, queue: str, store: Store, spawn: Spawn, estimator: Estimator) -> None:
        self._queue = queue
        self._store = store
        self._spawn = spawn
        self._estimator = estimator
        self._loop = asyncio.get_running_loop()
        self._watches: set[_Watch] = set()  # that have not ended
        self._newcomers: set[_Watch] = set()  # since whose coming no read has begun that was answered
        self._ready: dict[_Watch, None] = {}
        self._doomed: deque[_Watch] = deque()  # that end and have not learned of it
        self._trouble: HeadwayError | None = None  # of the last look
        self._latest: ToldQueue | None = None
        self._number = 0  # of the latest; grows when there is news
        self._read_at = self._checked_at = self._news_at = float("-inf")
        self._is_armed = False  # since before the last read: a change will be heard
        self._are_consumers_armed = False  # the same, of the consumer line; kept so while somebody is ready
        self._are_producers_armed = False  # the same, of the producer line, and of what changes when the queue goes
        self._is_serving = False
        self._is_showing = False  # to those who are left, soon
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watches)

    def kick(self) -> None:
        """Something may have changed."""
        self._is_armed = False
        self._wake.set()

    def kick_consumers(self) -> None:
        """The consumer line may have changed."""
        self._are_consumers_armed = False
        self._wake.set()

    def kick_producers(self) -> None:
        """The producer line may have changed, or the queue may be no more."""
        self._are_producers_armed = False
        self._wake.set()
        if self._watches:
            self._see_to_it()

    def kick_all(self) -> None:
        """Anything may have."""
        self.kick()
        self.kick_consumers()
        self.kick_producers()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch with an error."""
        for watch in tuple(self._watches):
            self._doom(watch, lambda: error)
        while self._doomed:
            self._doomed.popleft().end()

    async def watch(self, interval_s: float, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """The numbers: at once, and then whenever there is news, once in `interval_s` at most. Raises what the first
        look raises, within `budget_s`; QueueDeleted when the queue is no more; what `fail_all` was given."""
        watch = _Watch(self._loop.time() + budget_s)
        self._watches.add(watch)
        self._newcomers.add(watch)
        try:
            while watch.why is None:
                told = await self._next(watch)
                next_at = self._loop.time() + interval_s
                yield told
                if watch.why is None:
                    await asyncio.wait((watch.over,), timeout=max(next_at - self._loop.time(), 0))
            raise watch.why()
        finally:
            self._forget(watch)

    def _doom(self, watch: _Watch, why: Callable[[], HeadwayError]) -> None:
        """It is shown nothing more from now on, and ends soon, with others: there may be thousands of them, and to end
        all in one turn of the loop would hold up everybody else's calls. So would making an error for each."""
        if watch.why is not None:
            return
        self._forget(watch)
        watch.why = why
        self._doomed.append(watch)
        if len(self._doomed) == 1:
            self._loop.call_soon(self._end_some)

    def _end_some(self) -> None:
        for _ in range(min(len(self._doomed), _ENDED_AT_ONCE)):
            self._doomed.popleft().end()
        if self._doomed:
            self._loop.call_soon(self._end_some)

    def _forget(self, watch: _Watch) -> None:
        self._watches.discard(watch)
        self._newcomers.discard(watch)
        self._wake.set()

    async def _next(self, watch: _Watch) -> ToldQueue:
        watch.next = self._loop.create_future()
        self._ready[watch] = None
        self._wake.set()
        self._see_to_it()
        try:
            async with asyncio.timeout_at(watch.until):
                return await watch.next
        except TimeoutError:
            if watch.why is not None:
                raise watch.why() from None
            raise self._trouble or silent() from None
        finally:
            watch.next = None
            del self._ready[watch]
            self._wake.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _see_to_it(self) -> None:
        if not self._is_serving:
            self._is_serving = True
            self._spawn(self._guarded(), f"board:{self._queue}")

    async def _guarded(self) -> None:
        """Nobody must wait for a task that is no more."""
        try:
            await self._serve()
        except BaseException:
            self.fail_all(InternalError("watching the queue has failed"))
            raise
        finally:  # without an await between: nobody is ready and not served
            self._is_serving = False

    async def _serve(self) -> None:
        """Runs while somebody is ready, and until the end of the queue will be heard."""
        while self._ready or (self._watches and not self._are_producers_armed):
            self._wake.clear()
            if self._is_current:
                self._show()
            read_at = self._next_read_at()
            if read_at <= self._loop.time():
                await self._read()
                continue
            try:
                async with asyncio.timeout_at(read_at):
                    await self._wake.wait()
            except TimeoutError:
                pass

    @property
    def _is_current(self) -> bool:
        """Whether nothing has changed since the last read, as far as it would have been heard."""
        return self._is_armed and self._are_consumers_armed and self._are_producers_armed

    def _next_read_at(self) -> float:
        if not self._ready:
            return max(self._read_at + READ_EVERY_S, self._checked_at + CHECK_EVERY_S)
        if self._newcomers or not self._is_current:
            return self._read_at + READ_EVERY_S
        return self._read_at + READ_AT_LEAST_EVERY_S

    def _show(self) -> None:
        """To some at a time: a thousand who are told in one turn of the loop would hold up everybody else's calls."""
        if self._is_showing or self._latest is None:
            return
        shown = 0
        for watch in self._ready:
            if watch.is_open_to(self._number) and watch not in self._newcomers:
                watch.show(self._number, self._latest)
                shown += 1
                if shown == _SHOWN_AT_ONCE:
                    self._is_showing = True
                    self._loop.call_later(_BETWEEN_SHOWS_S, self._show_more)
                    return

    def _show_more(self) -> None:
        self._is_showing = False
        self._show()

    async def _read(self) -> None:
        came = tuple(self._newcomers)  # before it: what it tells is true for them
        untils = (watch.until for watch in self._ready if watch.until is not None)
        budget_s = look_budget_s(untils, self._loop.time())
        try:
            await self._arm()
            # First what books: before that a queue that a foreign client made has no generation.
            places = await self._store.places(self._queue, (), with_shape=False, budget_s=budget_s)
            queue = await self._store.describe(self._queue, budget_s=budget_s)
        except HeadwayError as error:
            await self._read_failed(error, came)
            return
        finally:
            self._read_at = self._loop.time()
            if not self._ready:
                self._checked_at = self._read_at
        self._trouble = None
        self._newcomers.difference_update(came)
        self._estimator.observe(places.numbers)
        self._note(queue)
        self._show()

    async def _arm(self) -> None:
        """So that what changes while it is asked for is heard. Of the keys of the producer line one changes when the
        queue goes, and all seldom; those of the line of messages, and of consumers, change all the time."""
        self._is_armed = True
        await self._store.arm_watch(self._queue)
        if self._ready and not self._are_consumers_armed:
            self._are_consumers_armed = True
            await self._store.arm_standing(self._queue)
        if not self._are_producers_armed:
            self._are_producers_armed = True
            await self._store.arm_blocked(self._queue)

    def _note(self, queue: Queue) -> None:
        latest = self._latest
        self._end_others(queue.generation)
        told = ToldQueue(queue, queue.at_ms, self._estimator.estimate(queue.counts.length + 1))
        is_news = latest is None or _timeless(latest.queue) != _timeless(queue)
        is_old = self._read_at >= self._news_at + READ_AT_LEAST_EVERY_S
        if is_news or (is_old and latest != told):
            self._number += 1
            self._news_at = self._read_at
        self._latest = told

    def _end_others(self, generation: str) -> None:
        """Whoever was shown another life of the queue has seen its end; "" = there is none now, or one
        that nothing has been booked of."""
        why = partial(QueueDeleted.of, self._queue)
        for watch in tuple(self._watches):
            if watch.generation not in ("", generation):
                self._doom(watch, why)

    async def _read_failed(self, error: HeadwayError, came: Sequence[_Watch]) -> None:
        log.debug("board.read_failed", queue=self._queue, reason=error.reason.name)
        self._is_armed = self._are_consumers_armed = self._are_producers_armed = False
        if isinstance(error, NotThere):
            self._latest = None
            self._end_others("")
            for watch in (*came, *(self._watches - self._newcomers)):
                self._doom(watch, lambda: error)
            return
        if may_pass(error):
            self._trouble = of_a_look(error)
            await asyncio.sleep(SHORT_PAUSE_S)
            return
        for watch in tuple(self._ready):
            if watch.until is not None:
                self._doom(watch, lambda: error)
        await asyncio.sleep(TROUBLE_PAUSE_S)


def _timeless(queue: Queue) -> Queue:
    """Without what time alone changes."""
    return replace(queue, counts=replace(queue.counts, put_rate=0.0, ack_rate=0.0, oldest_age_ms=None))
