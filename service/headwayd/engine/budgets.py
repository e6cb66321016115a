"""The time that the store may take: of one call, when the call takes several steps; and for a long list."""

from __future__ import annotations

import asyncio

LIST_BUDGET_S = 20.0  # goes through all keys of the store, a thousand at a time


class Budget:
    """Counts down from the moment it is made. A step that is begun with nothing left does not happen: the store calls
    that unavailable."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + seconds

    @property
    def left_s(self) -> float:
        """What the next step may take."""
        return max(self._ends_at - self._loop.time(), 0.0)
