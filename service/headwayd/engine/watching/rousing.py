"""Rouses those who wait for news, some in each turn of the event loop: ten thousand who are roused in one turn all tell
something in the next, and would hold up everybody else's calls."""

from __future__ import annotations

import asyncio
from collections import deque

_AT_A_TURN = 20


class Rousing:
    """Belongs to one event loop. Who comes when few do is roused at once, the others in order."""

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._left = _AT_A_TURN  # that may be roused in this turn
        self._is_turning = False

    def rouse(self, waiting: asyncio.Future[None]) -> None:
        """Ends this wait, if it has not ended by then."""
        self._line.append(waiting)
        self._rouse_some()
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _rouse_some(self) -> None:
        while self._left and self._line:
            waiting = self._line.popleft()
            if not waiting.done():
                waiting.set_result(None)
                self._left -= 1

    def _turn(self) -> None:
        self._left = _AT_A_TURN
        self._rouse_some()
        if self._left < _AT_A_TURN:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._is_turning = False
