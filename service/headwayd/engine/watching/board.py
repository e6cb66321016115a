"""A queue's numbers, shown to all who watch them in this process by one reader. It reads only when somebody is ready to
be shown something, and something may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from headwayd.domain.errors import HeadwayError, InternalError, NotThere, QueueDeleted
from headwayd.domain.model import Queue
from headwayd.domain.watching import ToldQueue
from headwayd.engine.ports import Store
from headwayd.engine.watching.estimates import Estimator
from headwayd.engine.watching.trouble import may_pass, of_a_look, silent

READ_EVERY_S = 0.1
READ_AT_LEAST_EVERY_S = 9.0  # what time alone changes (rates, the age of the oldest) is news so often
_BUDGET_S = 2.0
_TROUBLE_PAUSE_S = 0.25
_SHORT_PAUSE_S = 0.05
_LEAST_BUDGET_S = 0.02
_SHOWN_AT_ONCE, _BETWEEN_SHOWS_S = 10, 0.005
log = structlog.get_logger(__name__)

Spawn = Callable[[Awaitable[None], str], None]


@dataclass(eq=False, slots=True)
class _Ready:
    """Somebody to be shown what is newer than number `seen`; for the first time by `until`, else None."""

    seen: int
    until: float | None
    shown: asyncio.Future[tuple[int, ToldQueue]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Board:
    """The numbers of one queue. Belongs to one event loop."""

    def __init__(self, queue: str, store: Store, spawn: Spawn, estimator: Estimator) -> None:
        self._queue = queue
        self._store = store
        self._spawn = spawn
        self._estimator = estimator
        self._loop = asyncio.get_running_loop()
        self._watching = 0
        self._ready: dict[_Ready, None] = {}
        self._ended: asyncio.Future[HeadwayError] = self._loop.create_future()
        self._trouble: HeadwayError | None = None  # of the last look
        self._latest: ToldQueue | None = None
        self._number = 0  # of the latest; grows when there is news
        self._read_at = self._news_at = float("-inf")
        self._is_armed = False  # since before the last read: a change will be heard
        self._is_serving = False
        self._is_showing = False  # to those who are left, soon
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return self._watching

    @property
    def has_ended(self) -> bool:
        """Whether it shows nothing any more."""
        return self._ended.done()

    def kick(self) -> None:
        """Something may have changed."""
        self._is_armed = False
        self._wake.set()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch, and those to come, with an error."""
        if not self._ended.done():
            self._ended.set_result(error)
        for ready in tuple(self._ready):
            if not ready.shown.done():
                ready.shown.set_exception(error)

    async def watch(self, interval_s: float, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """The numbers: at once, and then whenever there is news, once in `interval_s` at most. Raises what the first
        look raises, within `budget_s`; QueueDeleted when there is no such queue any more; what `fail_all` was given."""
        self._watching += 1
        seen = 0
        until: float | None = self._loop.time() + budget_s
        try:
            while not self._ended.done():
                seen, told = await self._newer_than(seen, until)
                until = None
                next_at = self._loop.time() + interval_s
                yield told
                await asyncio.wait((self._ended,), timeout=max(next_at - self._loop.time(), 0))
            raise self._ended.result()
        finally:
            self._watching -= 1

    async def _newer_than(self, seen: int, until: float | None) -> tuple[int, ToldQueue]:
        ready = _Ready(seen, until)
        self._ready[ready] = None
        self._wake.set()
        if not self._is_serving:
            self._is_serving = True
            self._spawn(self._guarded(), f"board:{self._queue}")
        try:
            async with asyncio.timeout_at(until):
                return await ready.shown
        except TimeoutError:
            raise self._trouble or silent() from None
        finally:
            del self._ready[ready]
            self._wake.set()

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
        """Runs while somebody is ready."""
        while self._ready and not self._ended.done():
            self._wake.clear()
            if self._is_armed:
                self._show()
            pause_s = READ_AT_LEAST_EVERY_S if self._is_armed else READ_EVERY_S
            if self._read_at + pause_s <= self._loop.time():
                await self._read()
                continue
            try:
                async with asyncio.timeout_at(self._read_at + pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _show(self) -> None:
        """To some at a time: a thousand who are told in one turn of the loop would hold up everybody else's calls."""
        if self._is_showing or self._latest is None:
            return
        shown = 0
        for ready in self._ready:
            if ready.seen < self._number and not ready.shown.done():
                ready.shown.set_result((self._number, self._latest))
                shown += 1
                if shown == _SHOWN_AT_ONCE:
                    self._is_showing = True
                    self._loop.call_later(_BETWEEN_SHOWS_S, self._show_more)
                    return

    def _show_more(self) -> None:
        self._is_showing = False
        self._show()

    async def _read(self) -> None:
        untils = [ready.until - self._loop.time() for ready in self._ready if ready.until is not None]
        budget_s = max(min([_BUDGET_S, *untils]), _LEAST_BUDGET_S)
        try:
            self._is_armed = True  # before: a hint may come while it is asked for
            await self._store.arm_watch(self._queue)
            queue = await self._store.describe(self._queue, budget_s=budget_s)
            places = await self._store.places(self._queue, (), with_shape=False, budget_s=budget_s)
        except HeadwayError as error:
            await self._read_failed(error)
            return
        finally:
            self._read_at = self._loop.time()
        self._trouble = None
        self._estimator.observe(places.numbers)
        self._note(queue)
        self._show()

    def _note(self, queue: Queue) -> None:
        latest = self._latest
        if latest is not None and latest.queue.generation != queue.generation:
            self.fail_all(QueueDeleted.of(self._queue))
            return
        told = ToldQueue(queue, queue.at_ms, self._estimator.estimate(queue.counts.length + 1))
        is_news = latest is None or _timeless(latest.queue) != _timeless(queue)
        is_old = self._read_at >= self._news_at + READ_AT_LEAST_EVERY_S
        if is_news or (is_old and latest != told):
            self._number += 1
            self._news_at = self._read_at
            self._latest = told

    async def _read_failed(self, error: HeadwayError) -> None:
        log.debug("board.read_failed", queue=self._queue, reason=error.reason.name)
        self._is_armed = False
        if isinstance(error, NotThere):
            if self._latest is not None:
                error = QueueDeleted.of(self._queue)
            self.fail_all(error)
            return
        if may_pass(error):
            self._trouble = of_a_look(error)
            await asyncio.sleep(_SHORT_PAUSE_S)
            return
        for ready in tuple(self._ready):
            if ready.until is not None and not ready.shown.done():
                ready.shown.set_exception(error)
        await asyncio.sleep(_TROUBLE_PAUSE_S)


def _timeless(queue: Queue) -> Queue:
    """Without what time alone changes."""
    return replace(queue, counts=replace(queue.counts, put_rate=0.0, ack_rate=0.0, oldest_age_ms=None))
