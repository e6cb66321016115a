"""What one stream knows of how it stands, and what it has told last."""

from __future__ import annotations

import asyncio

from headwayd.domain.hints import PollHints
from headwayd.domain.model import Policy
from headwayd.domain.places import LineNumbers
from headwayd.domain.standing import Footing, Footings
from headwayd.engine.consumers import Consumer
from headwayd.engine.watching.telling import due_at


class Stance:
    """One stream. Its follower sets `footing`; whoever reads it waits for `news`. Spans of time are by this process's
    clock."""

    def __init__(self, consumer: Consumer, *, is_quiet: bool = False) -> None:
        self.consumer = consumer
        self.is_quiet = is_quiet  # it is told of changes only, however long there is none
        self.is_holding = False  # its turn has come and is not over
        self.footing: Footing | None = None
        self.numbers: LineNumbers | None = None
        self.known_at = float("-inf")  # when `footing` was asked for
        self.told_position = 0
        self.told_at = float("-inf")
        self.polls = Policy()  # as it was then: its poll part at least
        self.hints = PollHints(poll_min_ms=0, poll_max_ms=0)  # told last
        self.look_at = float("inf")  # when its follower next looks, whatever happens
        self.error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def number(self) -> int:
        """What it stands in line by; 0 if it has none there."""
        if self.footing is not None and self.footing.position:
            return self.footing.number
        return self.consumer.waiter.number

    @property
    def must_tell_at(self) -> float:
        """From when on it is told whatever it is; who is quiet, when it has changed at all."""
        return self.told_at + self.hints.poll_max_ms / 1_000

    def is_due(self, now: float) -> bool:
        """Whether the place that was found last is to be told."""
        assert self.footing is not None
        position = self.footing.position
        if self.is_quiet and position == self.told_position:
            return False
        return now >= due_at(self.told_position, position, told_at=self.told_at, hints=self.hints)

    def learn(self, footing: Footing, found: Footings, asked_at: float) -> None:
        """How it stood at an instant not before `asked_at`."""
        self.footing, self.numbers, self.polls, self.known_at = footing, found.numbers, found.polls, asked_at

    def stir(self) -> None:
        """There is something to tell."""
        self._news.set()

    def fail(self, error: Exception) -> None:
        """There will be nothing more to tell."""
        self.error = self.error or error
        self._news.set()

    async def news(self) -> None:
        """Waits until there is something to tell, or its turn has come. Raises what `fail` was given."""
        await self._news.wait()
        self._news.clear()
        if self.error is not None:
            raise self.error
