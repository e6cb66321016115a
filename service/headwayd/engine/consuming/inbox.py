"""What a stream's consumer asked for, read ahead a little: so much that its acks can be done together, and no more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from headwayd.domain.consuming import AckOrder, ConsumeStep

_MOST_UNDONE = 16  # steps; then the consumer is held back


class Inbox:
    """The steps of one stream, read by a task of its own from the start. `on_news` is called when there is one more, or
    when there will be no more."""

    def __init__(self, steps: AsyncIterator[ConsumeStep], on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._undone: deque[ConsumeStep] = deque()
        self._has_room = asyncio.Event()
        self._reading = asyncio.create_task(self._read(steps), name="inbox")
        self._reading.add_done_callback(self._ended)

    async def _read(self, steps: AsyncIterator[ConsumeStep]) -> None:
        async for step in steps:
            self._undone.append(step)
            self._on_news()
            while len(self._undone) >= _MOST_UNDONE:
                self._has_room.clear()
                await self._has_room.wait()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # raised by `is_over`, if anybody asks
        self._on_news()

    @property
    def is_read(self) -> bool:
        """Whether the consumer will ask for nothing more; some of what it asked for may be left."""
        return self._reading.done()

    @property
    def is_over(self) -> bool:
        """Whether all is done, and there will be no more. Raises what the reading ended with."""
        if self._undone or not self._reading.done():
            return False
        if not self._reading.cancelled():
            self._reading.result()
        return True

    def take(self) -> ConsumeStep | None:
        """The next step, if there is one."""
        if not self._undone:
            return None
        step = self._undone.popleft()
        self._has_room.set()
        return step

    def take_more(self, ack: AckOrder, most: int) -> AckOrder:
        """This ack together with those right behind it, at most so many leases in all. Those with a result of their
        own stay."""
        leases = list(ack.leases)
        while self._undone:
            behind = self._undone[0]
            if not isinstance(behind, AckOrder) or behind.result or len(leases) + len(behind.leases) > most:
                break
            leases.extend(behind.leases)
            self._undone.popleft()
            self._has_room.set()
        return AckOrder(leases)

    def close(self) -> None:
        """Reads no more."""
        self._reading.cancel()
