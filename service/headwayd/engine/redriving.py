"""Redrive: the dead go back into a line in bounded steps, at a rate, and never faster than there is room for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from headwayd.domain.model import RedriveOrder, RedriveProgress
from headwayd.engine.ports import RedriveBounds, RedriveStep, Store

MOST_IN_A_STEP = 500
_STEPS_PER_S = 10  # at a rate: small steps, evenly spread
_FULL_PAUSE_S = 0.1
_TOLD_EVERY_S = 0.1


async def redrive(store: Store, order: RedriveOrder, *, budget_s: float) -> AsyncGenerator[RedriveProgress, None]:
    """Tells how far it is: after the first step, then ten times a second at most, and at the end. Closed or cancelled,
    it stops after the step under way. Raises what a step of the store raises; what it had done stays done."""
    loop = asyncio.get_running_loop()
    pace = _Pace(order.rate)
    rest = tuple(order.message_ids)
    not_found: list[str] = []
    redriven, bounds = 0, RedriveBounds()
    told_at: float | None = None
    while True:
        step = await _to_its_end(
            store.redrive(
                order.queue,
                order.to_queue,
                message_ids=rest[: pace.most],
                bounds=bounds,
                most=pace.most,
                budget_s=budget_s,
            )
        )
        bounds = step.bounds
        redriven += step.moved
        not_found += step.not_found
        rest = rest[step.done :]
        remaining = len(rest) if order.message_ids else step.remaining
        if not remaining:
            yield RedriveProgress(redriven=redriven, remaining=0, not_found_ids=tuple(not_found))
            return
        pause_s = pace.after(step)
        if told_at is None or loop.time() - told_at >= _TOLD_EVERY_S:
            told_at = loop.time()
            yield RedriveProgress(redriven=redriven, remaining=remaining)
        if pause_s:
            await asyncio.sleep(pause_s)


class _Pace:
    """How many a step moves at most, and how long it is until the next."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.most = MOST_IN_A_STEP
        if rate:
            self.most = min(max(int(rate / _STEPS_PER_S), 1), MOST_IN_A_STEP)

    def after(self, step: RedriveStep) -> float:
        """The pause after a step. What was moved uses up its share of the time from then on, so that nothing is made
        up for after a wait for room."""
        pause_s = step.moved / self._rate if self._rate else 0.0
        is_stuck = step.is_full or not (step.moved or step.done)
        return max(pause_s, _FULL_PAUSE_S) if is_stuck else pause_s


async def _to_its_end(work: Coroutine[Any, Any, RedriveStep]) -> RedriveStep:
    """The step's result. Cancelled, it lets the step end first."""
    step = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait({step})
        if not step.cancelled():
            step.exception()  # nobody is left to hear of it
        raise
