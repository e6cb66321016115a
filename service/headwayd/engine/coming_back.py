"""Coming back to a place in line, perhaps before the end of the call or stream that had it is seen, here or on another
process: until then it is kept nowhere, and the store calls it lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwayd.domain.errors import PlaceLost
from headwayd.engine.budgets import Budget

_LOOKS_AGAIN_AFTER_S = (0.1, 0.3, 0.6)
_T = TypeVar("_T")


async def come_back(step: Callable[[float], Awaitable[_T]], budget_s: float) -> _T:
    """What the step, which gets what is left of the budget, brings. Raises what it does; PlaceLost only when the place
    was looked for again for a second, or for as long as the budget allows."""
    budget = Budget(budget_s)
    for pause_s in _LOOKS_AGAIN_AFTER_S:
        try:
            return await step(budget.left_s)
        except PlaceLost:
            if budget.left_s <= pause_s:
                raise
            await asyncio.sleep(pause_s)
    return await step(budget.left_s)
