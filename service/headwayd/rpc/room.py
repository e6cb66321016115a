"""Room for large requests: how many bytes of them this process holds at a time, with what becomes of their messages.

Small ones are not counted, for a call by itself costs more than they do; but those of a stream that answers each are,
until they have been answered: it may have many, and their replies wait if nobody reads them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from headwayd.domain.errors import Overloaded

LARGE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Large:
    """A request that counts, and for how much: its size on the wire, and something for each message in it."""

    request: Any
    size: int


class Room:
    """So many bytes. What was taken must be given back, also when its call ends otherwise than it should."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Bytes that are held now."""
        return self._most - self._free

    def take(self, size: int) -> None:
        """Raises Overloaded if there is no room at once, or if others wait for it."""
        if self._waiting or size > self._free:
            raise Overloaded(
                "the service holds as many bytes of requests as it can take",
                metadata={"limit": "max_running_bytes"},
            )
        self._free -= size

    async def wait(self, size: int) -> None:
        """Takes it when there is room, first come, first served. `size` must not be more than there ever is."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._call_next()  # whoever stood behind may fit
            else:
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Gives back."""
        self._free += size
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if size > self._free:
                    return
                self._free -= size
                turn.set_result(None)
            self._waiting.popleft()
