"""One watched queue in this process: however many watch, one reader of the store.

Two tasks serve it as long as somebody watches:

* `_follow` reads what happened since the last read: at once after a hint, never more often than `READ_EVERY_S`, and
  when nothing happens only so often that the log does not lapse. Like a line of waiters (`engine/lines.py`) it arms a
  hint when a read brought nothing, and reads once more, because what changed before arming is not heard.
* `_ask_all` asks where messages are: those of newcomers, many at once, and those that the log says too little about.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

import structlog

from headwayd.domain.errors import (
    HeadwayError,
    InternalError,
    NotThere,
    QueueDeleted,
    QueueNotFound,
)
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Told, ToldWaiting
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.estimates import Estimator
from headwayd.engine.watching.known import Known
from headwayd.engine.watching.line import Glance
from headwayd.engine.watching.trouble import SHORT_PAUSE_S, TROUBLE_PAUSE_S, look_budget_s, may_pass, of_a_look, silent
from headwayd.engine.watching.watch import Watch, Watcher

READ_EVERY_S = 0.08
READ_AT_LEAST_EVERY_S = 9.0  # the store logs for 15 s after a look
MOST_IDS = 1_000  # asked for in one step
_COLLECT_S = 0.005  # newcomers of the same moment are asked about together
_ASK_EVERY_S = 0.1  # about the others
log = structlog.get_logger(__name__)

NoteLag = Callable[[float], None]  # how many seconds old a position is when it is told


class Feed:
    """The watches of one queue. Belongs to one event loop."""

    def __init__(
        self, queue: str, store: Store, spawn: Spawn, estimator: Estimator, *, note_lag: NoteLag | None = None
    ) -> None:
        self._queue = queue
        self._store = store
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._known = Known(estimator)
        self._note_lag = note_lag
        self._watchers: set[Watcher] = set()
        self._newcomers: dict[Watch, float] = {}  # and until when they must be answered
        self._trouble: HeadwayError | None = None  # of the last ask
        self._read_at = self._asked_at = float("-inf")
        self._is_armed = False
        self._is_calm = False  # the last read brought nothing new, and a change after it will be heard
        self._is_following = self._is_asking = False
        self._wake = asyncio.Event()
        self._news: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_watched(self) -> bool:
        """Whether anybody is left."""
        return bool(self._watchers)

    def __len__(self) -> int:
        return len(self._watchers)

    # -- coming and going ---------------------------------------------------------------------------------------------

    def join(self, watcher: Watcher, budget_s: float) -> None:
        """Begins to watch. All its messages are found, or it is failed, within `budget_s`."""
        self._watchers.add(watcher)
        until = self._loop.time() + budget_s
        self._loop.call_at(until, self._fail_if_not_found, watcher)
        for watch in watcher.watches:
            self._newcomers[watch] = until
        self._find_out()
        if not self._is_following:
            self._is_following = True
            self._spawn(self._guarded(self._follow()), f"watch:{self._queue}")

    def _fail_if_not_found(self, watcher: Watcher) -> None:
        if any(watch in self._newcomers for watch in watcher.watches):
            watcher.fail(self._trouble or silent())

    def leave(self, watcher: Watcher) -> None:
        """Watches no more."""
        self._watchers.discard(watcher)
        for watch in watcher.watches:
            self._newcomers.pop(watch, None)
            self._known.leave(watch)
        if not self._watchers:
            self._wake.set()

    def unfinished(self, watcher: Watcher) -> Iterator[tuple[str, list[str]]]:
        """The ids of its messages that have no end that is known, by the generation of their queue ("": whichever)."""
        for generation, is_found in ((self._known.generation, True), ("", False)):
            if ids := watcher.unfinished_ids(found=is_found):
                yield generation, ids

    def kick(self) -> None:
        """Something may have changed."""
        self._is_armed = self._is_calm = False
        self._wake.set()

    def lose_track(self) -> None:
        """Anything may have changed, even what was read."""
        self._known.lose_track()
        self._find_out()
        self.kick()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch with an error."""
        for watcher in tuple(self._watchers):
            watcher.fail(error)

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Nobody must wait for a task that is no more."""
        try:
            await work
        except BaseException:
            self.fail_all(InternalError("watching the queue has failed"))
            raise

    # -- telling ------------------------------------------------------------------------------------------------------

    def news(self) -> asyncio.Future[None]:
        """Done when the store has been asked once more."""
        return self._news

    def tell(self, watch: Watch) -> Told | None:
        """What is to be told of a message now; None if that is not known for sure: then it is found out."""
        told = self._known.tell(watch, self._loop.time())
        if self._note_lag is not None and watch.glance is not None and isinstance(told, ToldWaiting):
            self._note_lag(self._loop.time() - watch.glance.at)
        self._find_out()
        next_time = self._known.next_time()
        if next_time is not None and next_time <= self._loop.time() + READ_EVERY_S:
            self._wake.set()
        return told

    def _find_out(self) -> None:
        """Sees to it that what is wanted is read and asked for."""
        if self._known.must_read:
            self._wake.set()
        if not self._is_asking and self._watchers and (self._newcomers or self._known.wants_answer):
            self._is_asking = True
            self._spawn(self._guarded(self._ask_all()), f"places:{self._queue}")

    def _announce(self) -> None:
        if not self._news.done():
            self._news.set_result(None)
        self._news = self._loop.create_future()

    # -- following ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Runs until nobody watches."""
        try:
            while self._watchers:
                self._wake.clear()
                now = self._loop.time()
                self._known.come(now)
                self._find_out()
                read_at = self._next_read_at()
                if read_at <= now:
                    await self._read()
                    continue
                next_time = self._known.next_time()
                wake_at = read_at if next_time is None else min(read_at, next_time)
                try:
                    async with asyncio.timeout_at(None if wake_at == float("inf") else wake_at):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:  # without an await between: nobody can join a feed that is not followed
            self._is_following = False

    def _next_read_at(self) -> float:
        if self._known.base is None:
            return float("inf")  # the answer to come begins anew
        if self._known.must_read or not self._is_calm:
            return self._read_at + READ_EVERY_S
        return self._read_at + READ_AT_LEAST_EVERY_S

    async def _read(self) -> None:
        base = self._known.base
        assert base is not None
        self._known.must_read = False
        asked_at, was_armed = self._loop.time(), self._is_armed
        try:
            read = await self._store.feed(
                self._queue, generation=base.generation, logged=base.logged, budget_s=STORE_BUDGET_S
            )
        except (QueueNotFound, QueueDeleted):
            self._known.end_all()
            return
        except HeadwayError as error:
            log.debug("watch.read_failed", queue=self._queue, reason=error.reason.name)
            self._is_calm = False
            await asyncio.sleep(TROUBLE_PAUSE_S)
            return
        finally:
            self._read_at = self._loop.time()
        if self._known.base is not base:
            self._is_calm = False
            return  # track was lost meanwhile
        self._known.set_policy(read.polls)
        self._known.take(read, Glance(read.numbers, asked_at), self._loop.time())
        self._find_out()
        self._announce()
        if _has_changed(base, read.numbers):
            self._is_calm = False
        elif was_armed:
            self._is_calm = self._is_armed
        else:
            self._is_armed = True  # before: a hint may come while it is asked for
            await self._store.arm_watch(self._queue)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask_all(self) -> None:
        """Runs until everything that was to be asked for is known."""
        try:
            while self._watchers and (self._newcomers or self._known.wants_answer):
                pause_s = _COLLECT_S if self._newcomers else self._asked_at + _ASK_EVERY_S - self._loop.time()
                await asyncio.sleep(max(pause_s, 0))
                await self._ask()
        finally:
            self._is_asking = False

    def _next_batch(self) -> dict[str, list[Watch]]:
        """Those who are asked about next, by id: newcomers first."""
        batch: dict[str, list[Watch]] = {}
        for watch in itertools.chain(self._newcomers, self._known.doubtful):
            if len(batch) >= MOST_IDS:
                break
            batch.setdefault(watch.id, []).append(watch)
        return batch

    async def _ask(self) -> None:
        batch = self._next_batch()
        asked_at = self._asked_at = self._loop.time()
        losses = self._known.losses
        untils = [self._newcomers[watch] for watches in batch.values() for watch in watches if watch in self._newcomers]
        budget_s = look_budget_s(untils, asked_at)
        try:
            places = await self._store.places(
                self._queue, list(batch), with_shape=self._known.wants_shape, budget_s=budget_s
            )
        except HeadwayError as error:
            await self._ask_failed(batch, error)
            return
        self._trouble = None
        glance = Glance(places.numbers, asked_at)
        if losses != self._known.losses or not self._known.accept(glance, places.shape):
            return  # they are asked about again
        if self._known.base is places.numbers:  # it begins anew
            self._known.set_policy(places.polls)
            self._read_at = asked_at
            self._is_calm = False
            self._wake.set()
        now = self._loop.time()
        for place in places.places:
            for watch in batch[place.id]:
                is_newcomer = self._newcomers.pop(watch, None) is not None
                if is_newcomer or watch in self._known.doubtful:  # it may have left or ended meanwhile
                    self._known.place(watch, place, glance, now)
        self._announce()

    async def _ask_failed(self, batch: dict[str, list[Watch]], error: HeadwayError) -> None:
        log.debug("watch.ask_failed", queue=self._queue, reason=error.reason.name)
        if isinstance(error, NotThere):
            self._known.end_all()
        if may_pass(error):  # newcomers are asked about again as long as they have time
            self._trouble = of_a_look(error)
        else:
            for watches in batch.values():
                for watch in watches:
                    if self._newcomers.pop(watch, None) is not None:
                        watch.watcher.fail(error)
        await asyncio.sleep(SHORT_PAUSE_S if self._newcomers else TROUBLE_PAUSE_S)


def _has_changed(before: LineNumbers, after: LineNumbers) -> bool:
    names = ("logged", "head", "tail", "length", "generation")
    return any(getattr(before, name) != getattr(after, name) for name in names)
