"""Wakes everybody in this process, some at a time, when any of them may have missed something.

Each who is woken asks the store: ten thousand in one turn of the event loop would hold up all calls.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import structlog

from headwayd.engine.tasks import Spawn

_IN_ONE_TURN = 50
log = structlog.get_logger(__name__)

Wake = Callable[[], None]


class Waking:
    """`wakes` tells how each of those is woken who are there now. Whoever comes later has missed nothing."""

    def __init__(self, wakes: Callable[[], Iterator[Wake]], spawn: Spawn) -> None:
        self._wakes = wakes
        self._spawn = spawn
        self._left: Iterator[Wake] = iter(())
        self._is_under_way = False

    def begin(self) -> None:
        """Everybody is woken soon, also who has just been, and who was to be."""
        self._left = self._wakes()
        if not self._is_under_way:
            self._is_under_way = True
            self._spawn(self._go(), "waking")

    async def _go(self) -> None:
        try:
            while some := tuple(itertools.islice(self._left, _IN_ONE_TURN)):
                for wake in some:
                    try:
                        wake()
                    except Exception:  # loop guard: the others are woken all the same
                        log.exception("a defect kept somebody from being woken")
                await asyncio.sleep(0)
        finally:  # without an await since nobody was left
            self._is_under_way = False
