"""Calls whose one request has not come whole. No handler runs, and gRPC does not count them as waiting any more; so
they are counted here, and ended if there are too many, or if they take too long.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from headwayd.rpc.core.call import Call
    from headwayd.rpc.core.known import Refused

# So many have room in any case. Each call is one of them for a moment, also one that must be served however many run.
ALWAYS = 100
# A request that was on its way when the process began to go down has this long to come.
ON_ITS_WAY_S = 1.0
_BETWEEN_SWEEPS_S = 1.0
_EARLY_AT_A_TIME = 8


class Why(Enum):
    """Why one is ended."""

    TOO_LATE = 1
    TOO_MANY = 2
    GOING_DOWN = 3


class Awaited:
    """Those of one process. Has `room` for so many, for each of them `timeout_s`; `told` makes what one is ended with
    (of its path, and why; None = it is cancelled).

    All but `may_begin_early` and `began_early` belongs to the event loop.
    """

    def __init__(
        self,
        *,
        room: Callable[[], int] = lambda: sys.maxsize,
        timeout_s: float = float("inf"),
        told: Callable[[str, Why], Refused | None] = lambda _path, _why: None,
    ) -> None:
        self._room = room
        self._told = told
        # Time is told in sweeps: while the event loop stands still it is not the callers who are late.
        self._between_s = min(_BETWEEN_SWEEPS_S, timeout_s / 4)
        self._most_sweeps = timeout_s / self._between_s
        self._sweeps = 0
        self._since: dict[Call, int] = {}  # by the sweep before; the longest first
        self._early: set[Call] = set()  # begun by the thread since the last sweep
        self._is_draining = False

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._since) + len(self._early)

    @property
    def may_begin_early(self) -> bool:
        """Whether the event loop keeps up with those that were. Who is slow counts until the next sweep only."""
        return len(self._early) < _EARLY_AT_A_TIME

    def began_early(self, call: Call) -> None:
        """By the thread of completions, before the request can come."""
        self._early.add(call)

    def began(self, call: Call) -> None:
        """One more, and if that is too many those end that have waited longest."""
        self._since[call] = self._sweeps
        if len(self._since) > ALWAYS:
            self._make_room()

    def came(self, call: Call) -> None:
        """Its request has, or will not any more."""
        if self._since.pop(call, None) is None:
            self._early.discard(call)

    def start_draining(self) -> None:
        """From now on they have no more time than a request takes that is on its way. Idempotent."""
        self._is_draining = True
        self._most_sweeps = min(self._most_sweeps, ON_ITS_WAY_S / self._between_s)

    async def end_late(self) -> NoReturn:
        """Ends those that have waited for too long, two seconds later at most. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._between_s)
            self.sweep()

    def sweep(self) -> None:
        """To be done over and over: ends those for which that was done too often."""
        self._sweeps += 1
        for call in self._early.copy():  # the thread may add to it meanwhile
            self._early.discard(call)
            self._since[call] = self._sweeps
        self._make_room()
        why = Why.GOING_DOWN if self._is_draining else Why.TOO_LATE
        for call, since in tuple(self._since.items()):
            if self._sweeps - since <= self._most_sweeps:
                break
            self._end(call, why)

    def _make_room(self) -> None:
        most = max(self._room(), ALWAYS)
        while len(self._since) > most:
            self._end(next(iter(self._since)), Why.TOO_MANY)

    def _end(self, call: Call, why: Why) -> None:
        del self._since[call]
        call.end_unread(self._told(call.path, why))
