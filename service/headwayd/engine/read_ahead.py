"""What comes on a stream, read ahead by a task of its own: so much that it can be done together, and no more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class ReadAhead(Generic[ItemT]):
    """Reads `items` from the start on, and stops while `most` of them, or `most_size` in all, are undone: then whoever
    sends them is held back. `on_news` is called when there is one more, or when there will be no more."""

    def __init__(
        self,
        items: AsyncIterator[ItemT],
        *,
        most: int,
        most_size: float = float("inf"),
        size: Callable[[ItemT], int] = lambda _item: 0,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self._most = most
        self._most_size = most_size
        self._size_of = size
        self._on_news = on_news
        self._undone: deque[ItemT] = deque()
        self._size = 0
        self._has_news, self._has_room = asyncio.Event(), asyncio.Event()
        self._reading: asyncio.Task[None] | None = asyncio.create_task(self._read(items), name="read ahead")
        self._reading.add_done_callback(self._ended)

    async def _read(self, items: AsyncIterator[ItemT]) -> None:
        async for item in items:
            self._undone.append(item)
            self._size += self._size_of(item)
            self._tell()
            while len(self._undone) >= self._most or self._size >= self._most_size:
                self._has_room.clear()
                await self._has_room.wait()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # raised by `is_over` and `next`, when it is its turn
        self._tell()

    def _tell(self) -> None:
        self._has_news.set()
        self._on_news()

    @property
    def is_read(self) -> bool:
        """Whether nothing more will come; some of what came may be left."""
        return self._reading is None or self._reading.done()

    @property
    def is_over(self) -> bool:
        """Whether all is done, and there will be no more. Raises what the reading ended with."""
        if self._undone or not self.is_read:
            return False
        if self._reading is not None and not self._reading.cancelled():
            self._reading.result()
        return True

    def peek(self) -> ItemT | None:
        """The next item, if there is one. It stays."""
        return self._undone[0] if self._undone else None

    def take(self) -> ItemT | None:
        """The next item, if there is one."""
        if not self._undone:
            return None
        item = self._undone.popleft()
        self._size -= self._size_of(item)
        self._has_room.set()
        return item

    async def next(self) -> ItemT | None:
        """The next item, when there is one; None behind the last. Raises what the reading ended with."""
        while (item := self.take()) is None and not self.is_over:
            self._has_news.clear()
            await self._has_news.wait()
        return item

    def close(self) -> None:
        """Reads no more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None  # by the error that ends it, it knows this: see `forget_way` of domain/errors.py
