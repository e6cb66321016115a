"""The door to watching: the feeds, boards and producer lines of this process, by queue. They live as long as somebody
watches."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from headwayd.domain.blocked import ToldProducer
from headwayd.domain.errors import HeadwayError
from headwayd.domain.watching import Told, ToldQueue, WatchOrder
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.waking import Wake
from headwayd.engine.watching.attended import withdraw_unattended
from headwayd.engine.watching.board import Board
from headwayd.engine.watching.estimates import Estimates
from headwayd.engine.watching.feed import Feed, NoteLag
from headwayd.engine.watching.producers import ProducerLine
from headwayd.engine.watching.rousing import Rousing
from headwayd.engine.watching.watch import Watcher

Held = TypeVar("Held", Board, ProducerLine)


class Watching:
    """Everybody in this process who watches."""

    def __init__(self, store: Store, spawn: Spawn, estimates: Estimates, *, note_lag: NoteLag | None = None) -> None:
        self._store = store
        self._spawn = spawn
        self._estimates = estimates
        self._note_lag = note_lag
        self._rousing = Rousing()
        self._feeds: dict[str, Feed] = {}
        self._boards: dict[str, Board] = {}
        self._producers: dict[str, ProducerLine] = {}

    def __len__(self) -> int:
        watched = (self._feeds.values(), self._boards.values(), self._producers.values())
        return sum(len(one) for those in watched for one in those)

    def kick(self, queue: str) -> None:
        """Something may have changed on this queue."""
        if (feed := self._feeds.get(queue)) is not None:
            feed.kick()
        if (board := self._boards.get(queue)) is not None:
            board.kick()

    def kick_consumers(self, queue: str) -> None:
        """The consumer line of this queue may have changed."""
        if (board := self._boards.get(queue)) is not None:
            board.kick_consumers()

    def kick_producers(self, queue: str) -> None:
        """The producer line of this queue may have changed, or the queue may be no more."""
        if (producers := self._producers.get(queue)) is not None:
            producers.kick()
        if (board := self._boards.get(queue)) is not None:
            board.kick_producers()

    def wakes(self) -> Iterator[Wake]:
        """By which all that is watched now is kicked: anything may have changed on any queue."""
        return itertools.chain(
            (feed.lose_track for feed in tuple(self._feeds.values())),
            (board.kick_all for board in tuple(self._boards.values())),
            (producers.kick for producers in tuple(self._producers.values())),
        )

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch with an error."""
        for feed in tuple(self._feeds.values()):
            feed.fail_all(error)
        for board in tuple(self._boards.values()):
            board.fail_all(error)
        for producers in tuple(self._producers.values()):
            producers.fail_all(error)

    async def messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]:
        """What becomes of the messages, until all have ended. The first look takes at most `budget_s`; closed or
        cancelled at any time, it leaves the rest to tasks of their own."""
        feed = self._feeds.get(order.queue)
        if feed is None:
            estimator = self._estimates.of(order.queue)
            feed = self._feeds[order.queue] = Feed(
                order.queue, self._store, self._spawn, estimator, note_lag=self._note_lag
            )
        watcher = Watcher(order.message_ids, self._rousing)
        feed.join(watcher, budget_s)
        try:
            while (told := await watcher.next(feed.tell, feed.news)) is not None:
                yield told
        finally:  # without an await: this may be the end of a cancelled call
            feed.leave(watcher)
            if not feed.is_watched and self._feeds.get(order.queue) is feed:
                del self._feeds[order.queue]
            for life, left in feed.unfinished(watcher) if order.is_attended else ():
                self._spawn(withdraw_unattended(self._store, order.queue, life, left), f"unattended:{order.queue}")

    async def queue(self, name: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """The queue's numbers, whenever they have changed, once in `interval_s` at most."""
        with _held(self._boards, name, lambda: self._board(name)) as board:
            async with aclosing(board.watch(interval_s, budget_s)) as shown:
                async for told in shown:
                    yield told

    async def producer(self, queue: str, name: str, *, budget_s: float) -> AsyncGenerator[ToldProducer, None]:
        """Where this producer stands in the producer line, until there will never be a place. The first look takes at
        most `budget_s`."""
        with _held(self._producers, queue, lambda: ProducerLine(queue, self._store, self._spawn)) as producers:
            async with aclosing(producers.watch(name, budget_s)) as places:
                async for told in places:
                    yield told

    def _board(self, queue: str) -> Board:
        return Board(queue, self._store, self._spawn, self._estimates.of(queue))


@contextmanager
def _held(those: dict[str, Held], queue: str, make: Callable[[], Held]) -> Iterator[Held]:
    """The one of this queue, made if there is none, and forgotten when nobody watches it any more."""
    if (one := those.get(queue)) is None:
        one = those[queue] = make()
    try:
        yield one
    finally:
        if not len(one) and those.get(queue) is one:
            del those[queue]
