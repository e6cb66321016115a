"""The door to watching: the feeds and boards of this process, by queue. They live as long as somebody watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from headwayd.domain.errors import HeadwayError
from headwayd.domain.watching import Told, ToldQueue, WatchOrder
from headwayd.engine.ports import Store
from headwayd.engine.watching.attended import withdraw_unattended
from headwayd.engine.watching.board import Board
from headwayd.engine.watching.estimates import Estimates
from headwayd.engine.watching.feed import Feed
from headwayd.engine.watching.watch import Watcher

Spawn = Callable[[Awaitable[None], str], None]


class Watching:
    """Everybody in this process who watches."""

    def __init__(self, store: Store, spawn: Spawn, estimates: Estimates) -> None:
        self._store = store
        self._spawn = spawn
        self._estimates = estimates
        self._feeds: dict[str, Feed] = {}
        self._boards: dict[str, Board] = {}

    def __len__(self) -> int:
        return sum(map(len, self._feeds.values())) + sum(map(len, self._boards.values()))

    def kick(self, queue: str | None) -> None:
        """Something may have changed on this queue; None: anything may have."""
        for feed in tuple(self._feeds.values()) if queue is None else (self._feeds.get(queue),):
            if feed is not None:
                feed.kick(is_lost=queue is None)
        for board in tuple(self._boards.values()) if queue is None else (self._boards.get(queue),):
            if board is not None:
                board.kick()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends every watch with an error."""
        for feed in tuple(self._feeds.values()):
            feed.fail_all(error)
        for board in tuple(self._boards.values()):
            board.fail_all(error)

    async def messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]:
        """What becomes of the messages, until all have ended. The first look takes at most `budget_s`; closed or
        cancelled at any time, it leaves the rest to tasks of their own."""
        feed = self._feeds.get(order.queue)
        if feed is None:
            estimator = self._estimates.of(order.queue)
            feed = self._feeds[order.queue] = Feed(order.queue, self._store, self._spawn, estimator)
        watcher = Watcher(order.message_ids)
        feed.join(watcher, budget_s)
        try:
            while (told := await watcher.next(feed.tell, feed.news)) is not None:
                yield told
        finally:  # without an await: this may be the end of a cancelled call
            feed.leave(watcher)
            if not feed.is_watched and self._feeds.get(order.queue) is feed:
                del self._feeds[order.queue]
            if order.is_attended and (left := watcher.unfinished_ids):
                self._spawn(withdraw_unattended(self._store, order.queue, left), f"unattended:{order.queue}")

    async def queue(self, name: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """The queue's numbers, whenever they have changed, once in `interval_s` at most."""
        board = self._boards.get(name)
        if board is None or board.has_ended:
            board = self._boards[name] = Board(name, self._store, self._spawn, self._estimates.of(name))
        try:
            async with aclosing(board.watch(interval_s, budget_s)) as shown:
                async for told in shown:
                    yield told
        finally:
            if not len(board) and self._boards.get(name) is board:
                del self._boards[name]
