"""Waiting for a role that a foreign client holds: looking again until it is given back or the wait is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwayd.domain.errors import RoleInUse, ShuttingDown
from headwayd.engine.budgets import Budget
from headwayd.engine.ports import RoleStep

T = TypeVar("T")
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


async def until_done(
    step: Callable[[str, float], Awaitable[T | RoleStep]],
    wait_ms: int,
    *,
    look_ms: int,
    budget_s: float,
    is_draining: Callable[[], bool],
) -> T | RoleStep:
    """Repeats the step while a foreign client holds the role, with growing pauses, for at most `wait_ms`. These calls
    are rare and short, so they look again instead of standing in a line. Each step gets the generation that the one
    before told, the first "": so all of them are of one life of the queue. And it gets the seconds that it may take:
    `budget_s`, but all have ended `look_ms` after the wait at the latest. Raises ShuttingDown between two steps once
    `is_draining`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    budget = Budget(max(wait_ms / 1000 + look_ms / 1000, budget_s))
    pause_s, generation = _SHORTEST_PAUSE_S, ""
    while True:
        result = await asyncio.shield(step(generation, min(budget.left_s, budget_s)))
        if not isinstance(result, RoleStep) or result.is_done:
            return result
        generation = result.generation
        left_s = deadline - loop.time()
        if left_s <= 0:
            return result
        if is_draining():
            raise ShuttingDown("this process is going down")
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def until_free(
    step: Callable[[float], Awaitable[T]], wait_s: float, *, budget_s: float, is_draining: Callable[[], bool]
) -> T:
    """Repeats the step while it raises RoleInUse, with growing pauses, for at most `wait_s`, then raises that. It gets
    the seconds that it may take: all of them together take `budget_s`, and the wait is a part of that. Raises
    ShuttingDown between two steps once `is_draining`."""
    loop = asyncio.get_running_loop()
    deadline, budget, pause_s = loop.time() + wait_s, Budget(budget_s), _SHORTEST_PAUSE_S
    while True:
        try:
            return await asyncio.shield(step(budget.left_s))
        except RoleInUse:
            if (left_s := deadline - loop.time()) <= 0:
                raise
        if is_draining():
            raise ShuttingDown("this process is going down")
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
