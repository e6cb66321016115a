"""One queue's producer line, for those in this process who watch where a producer stands in it: one reader of the
store, however many. It looks only if somebody is ready to be told, and something may have changed or poll_max is over:
then at those only for whom it is.

What is told when is the same as of messages (`roll.py`), but that a producer of which no Put waits is told so once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import structlog

from headwayd.domain.blocked import BlockedPlaces, ToldBlocked, ToldProducer
from headwayd.domain.errors import HeadwayError, InternalError, NotThere
from headwayd.domain.hints import PollHints, poll_hints
from headwayd.domain.standing import ToldOver
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.alarms import Alarms
from headwayd.engine.watching.rousing import Rousing
from headwayd.engine.watching.telling import TRUE_FOR_S, due_at
from headwayd.engine.watching.trouble import SHORT_PAUSE_S, TROUBLE_PAUSE_S, look_budget_s, may_pass, of_a_look, silent

LOOK_EVERY_S = 0.08
_CHECK_EVERY_S = 5.0  # hints may be lost
_NOW, _NEVER = float("-inf"), float("inf")
_NO_HINTS = PollHints(poll_min_ms=0, poll_max_ms=0)
log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Watch:
    """One stream. Spans of time are by this process's clock."""

    producer: str
    until: float | None  # when it must have been told something at the latest; None once it has
    generation: str = ""  # the queue's, when it was told first
    told_position: int | None = None  # None: nothing was told yet
    told_at: float = _NOW
    hints: PollHints = _NO_HINTS  # told last
    position: int = 0  # at the last look
    next: asyncio.Future[None] | None = None  # its wait for one of these two
    told: ToldProducer | None = None  # and not taken yet
    over: ToldOver | HeadwayError | None = None  # how it has ended

    @property
    def is_ready(self) -> bool:
        """To be told something."""
        return self.next is not None and self.told is None and self.over is None

    def due_at(self) -> float:
        """From when on its position, as it was at the last look, is to be told."""
        if self.told_position is None:
            return _NOW
        if self.told_position == self.position == 0:
            return _NEVER
        return due_at(self.told_position, self.position, told_at=self.told_at, hints=self.hints)


class ProducerLine:
    """Who watches producers of one queue. Belongs to one event loop."""

    def __init__(self, queue: str, store: Store, spawn: Spawn) -> None:
        self._queue = queue
        self._store = store
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._watches: set[_Watch] = set()
        self._ready: Alarms[_Watch] = Alarms()  # by when they are due
        self._rousing = Rousing()
        self._trouble: HeadwayError | None = None  # of the last look
        self._looked_at = self._checked_at = _NOW  # at some, at all
        self._is_changed = True  # since the last look began
        self._is_armed = False  # a change will be heard
        self._is_serving = False
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watches)

    def kick(self) -> None:
        """The line may have changed."""
        self._is_armed = False
        self._is_changed = True
        self._wake.set()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch with an error."""
        for watch in self._watches:
            self._end(watch, error)

    async def watch(self, producer: str, budget_s: float) -> AsyncGenerator[ToldProducer, None]:
        """The producer's place: at once, and then whenever that is due, until there will never be one. Raises what the
        first look raises, within `budget_s`, and what `fail_all` was given."""
        watch = _Watch(producer, self._loop.time() + budget_s)
        self._watches.add(watch)
        try:
            while True:
                told = await self._next(watch)
                yield told
                if isinstance(told, ToldOver):
                    return
        finally:
            self._watches.discard(watch)
            self._wake.set()

    async def _next(self, watch: _Watch) -> ToldProducer:
        if watch.over is not None:
            return self._over(watch.over)
        watch.next = self._loop.create_future()
        self._ready.set(watch, watch.due_at())
        self._wake.set()
        if not self._is_serving:
            self._is_serving = True
            self._spawn(self._guarded(), f"producers:{self._queue}")
        try:
            async with asyncio.timeout_at(watch.until):
                await watch.next
        except TimeoutError:
            if watch.is_ready:
                raise self._trouble or silent() from None
        finally:
            self._ready.drop(watch)
            told, watch.told = watch.told, None
            watch.until = None
            watch.next = None
        if told is not None:
            return told
        assert watch.over is not None
        return self._over(watch.over)

    @staticmethod
    def _over(over: ToldOver | HeadwayError) -> ToldOver:
        if isinstance(over, ToldOver):
            return over
        raise over

    def _tell(self, watch: _Watch, told: ToldProducer) -> None:
        assert watch.next is not None
        watch.told = told
        self._ready.drop(watch)
        self._rousing.rouse(watch.next)

    def _end(self, watch: _Watch, over: ToldOver | HeadwayError) -> None:
        """There is nothing more to tell."""
        if watch.is_ready and watch.next is not None:
            self._ready.drop(watch)
            self._rousing.rouse(watch.next)
        watch.over = watch.over or over

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _guarded(self) -> None:
        """Nobody must wait for a task that is no more."""
        try:
            await self._serve()
        except BaseException:
            self.fail_all(InternalError("watching the producer line has failed"))
            raise
        finally:  # without an await between: nobody is ready and not served
            self._is_serving = False

    async def _serve(self) -> None:
        """Runs while somebody watches."""
        while self._watches:
            self._wake.clear()
            look_at = self._look_at()
            if look_at <= self._loop.time():
                await self._look()
                continue
            try:
                async with asyncio.timeout_at(None if look_at == _NEVER else look_at):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _look_at(self) -> float:
        due_at = self._ready.first()
        if due_at is None:
            return _NEVER
        wanted_at = _NOW if self._is_changed else due_at
        return max(min(wanted_at, self._checked_at + _CHECK_EVERY_S), self._looked_at + LOOK_EVERY_S)

    def _whom(self, now: float, *, is_changed: bool) -> tuple[_Watch, ...]:
        """Those to be looked at: while nothing changes, who is due."""
        if is_changed or now >= self._checked_at + _CHECK_EVERY_S:
            self._checked_at = now
            return tuple(self._watches)
        due = tuple(self._ready.pop(now))
        for watch in due:  # until they are told
            self._ready.set(watch, watch.due_at())
        return due

    async def _look(self) -> None:
        """One look at the producers that are watched."""
        asked_at = self._looked_at = self._loop.time()
        is_changed, self._is_changed = self._is_changed, False
        if not self._is_armed:
            self._is_armed = True  # before: a hint may come while it is asked for
            await self._store.arm_blocked(self._queue)
        watches = self._whom(asked_at, is_changed=is_changed)
        if not watches:
            return  # whoever was due has gone meanwhile
        budget_s = look_budget_s((watch.until for watch in watches if watch.until is not None), asked_at)
        producers = list({watch.producer for watch in watches})
        try:
            found = await self._store.blocked(self._queue, producers, budget_s=budget_s)
        except HeadwayError as error:
            await self._look_failed(watches, error)
            return
        self._trouble = None
        now = self._loop.time()
        if now - asked_at > TRUE_FOR_S:
            self._is_changed = True  # it was true too long ago
            return
        positions = dict(zip(producers, found.positions, strict=True))
        for watch in watches:
            self._learn(watch, found, positions[watch.producer], now)

    def _learn(self, watch: _Watch, found: BlockedPlaces, position: int, now: float) -> None:
        numbers = found.numbers
        if watch.generation not in ("", numbers.generation):
            self._end(watch, ToldOver(is_deleted=True))
            return
        if numbers.is_closed:
            self._end(watch, ToldOver(is_deleted=False))
            return
        watch.position = position
        if not watch.is_ready:
            return
        due_at = watch.due_at()
        if due_at > now:
            self._ready.set(watch, due_at)
            return
        watch.generation = numbers.generation
        watch.told_position, watch.told_at = position, now
        watch.hints = poll_hints(found.polls, position)
        self._tell(watch, ToldBlocked(numbers.at_ms, position, numbers.producers_waiting, numbers.limit, watch.hints))

    async def _look_failed(self, watches: tuple[_Watch, ...], error: HeadwayError) -> None:
        log.debug("producers.look_failed", queue=self._queue, reason=error.reason.name)
        self._is_changed = True
        self._is_armed = False
        self._trouble = of_a_look(error)
        is_gone = isinstance(error, NotThere)
        for watch in watches:
            if is_gone and watch.told_position is not None:
                self._end(watch, ToldOver(is_deleted=True))
            elif watch.told_position is None and not may_pass(error):
                self._end(watch, error)
        await asyncio.sleep(SHORT_PAUSE_S if may_pass(error) else TROUBLE_PAUSE_S)
