"""The requests of a stream, read ahead by a task of its own: a little, so that they can be done together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class ReadAhead(Generic[ItemT]):
    """Reads `items` from the start on, and stops while `most` of them, or `most_size` in all, are undone. What ends the
    reading, an error as well, comes after all that was read before. Close it."""

    def __init__(self, items: AsyncIterator[ItemT], *, most: int, most_size: int, size: Callable[[ItemT], int]) -> None:
        self._most = most
        self._most_size = most_size
        self._size_of = size
        self._undone: deque[ItemT] = deque()
        self._size = 0
        self._has_news, self._has_room = asyncio.Event(), asyncio.Event()
        self._reading = asyncio.create_task(self._read(items), name="read ahead")
        self._reading.add_done_callback(self._ended)

    async def _read(self, items: AsyncIterator[ItemT]) -> None:
        async for item in items:
            self._undone.append(item)
            self._size += self._size_of(item)
            self._has_news.set()
            while len(self._undone) >= self._most or self._size >= self._most_size:
                self._has_room.clear()
                await self._has_room.wait()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # raised by `next`, when it is its turn
        self._has_news.set()

    async def next(self) -> ItemT | None:
        """The next item; None behind the last. Raises what the reading ended with."""
        while not self._undone:
            if self._reading.done():
                self._reading.result()
                return None
            self._has_news.clear()
            await self._has_news.wait()
        return self.drop()

    def peek(self) -> ItemT | None:
        """The next item, if it is there already. It stays."""
        return self._undone[0] if self._undone else None

    def drop(self) -> ItemT:
        """Takes the next item, which is there."""
        item = self._undone.popleft()
        self._size -= self._size_of(item)
        self._has_room.set()
        return item

    async def aclose(self) -> None:
        """Reads no more."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
