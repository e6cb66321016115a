"""The end of a wait before its time: for a caller whose credentials do not hold any more."""

from __future__ import annotations

import asyncio
from typing import Any

from headwayd.domain.errors import HeadwayError


class CutOff:
    """Of one call that may wait. `end` may be called at any time, and counts once. Made in an event loop."""

    __slots__ = ("_came", "why")

    def __init__(self) -> None:
        self._came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why: HeadwayError | None = None

    def end(self, why: HeadwayError) -> None:
        """The call waits no longer, and is told why if it has nothing better to tell."""
        if self.why is None:
            self.why = why
            self._came.set_result(None)

    async def wait(self, given: asyncio.Future[Any], *, timeout_s: float) -> None:
        """Waits for what the call waits for, or for the end."""
        await asyncio.wait({given, self._came}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def wait_for(given: asyncio.Future[Any], cut_off: CutOff | None, *, timeout_s: float) -> HeadwayError | None:
    """Waits for so long at most. What cut the wait off, if that is why it was shorter."""
    if cut_off is None:
        await asyncio.wait({given}, timeout=timeout_s)
        return None
    await cut_off.wait(given, timeout_s=timeout_s)
    return cut_off.why
