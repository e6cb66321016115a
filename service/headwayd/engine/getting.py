"""Get: at once if there is something, else in line until there is; and never a lease left with a caller who has
gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from headwayd.domain.errors import HeadwayError, QueueDeleted, QueueNotFound, QueuePaused, RoleInUse, StoreUnavailable
from headwayd.domain.model import Delivery, GetOrder, GetOutcome, Settlement
from headwayd.engine.budgets import Budget
from headwayd.engine.lines import Line, Lines
from headwayd.engine.ports import GetStep, Store, Wait

_SURE_FOR_S = 1.0
# The last look must take less than is left of the caller's deadline after the wait: a tenth of it, at least 100 ms.
_LAST_LOOK_SHARE, _LEAST_LAST_LOOK_S = 0.08, 0.09
_RELEASE_BUDGET_S = 2.0
_RELEASE_TRIES = 3
_RELEASE_PAUSE_S = 0.2
log = structlog.get_logger(__name__)

Spawn = Callable[[Awaitable[None], str], None]


class _Waiter:
    """One call in the consumer line. What it is given after it left is given back."""

    rank = 0  # first come, first served

    def __init__(self, order: GetOrder, getting: Getting, budget_s: float) -> None:
        self._order = order
        self._getting = getting
        self._budget_s = budget_s
        self.done: asyncio.Future[GetStep] = asyncio.get_running_loop().create_future()
        self.last: GetStep | None = None

    async def attempt(self) -> bool:
        if self.done.done():
            return True
        try:
            step = await self._getting.store.get(self._order, budget_s=self._budget_s)
        except StoreUnavailable:
            raise
        except HeadwayError as error:
            if isinstance(error, QueueNotFound):
                error = QueueDeleted(f"queue {self._order.queue!r} was deleted", metadata=error.metadata)
            self.fail(error)
            return True
        self.last = step
        self._getting.note_wait(self._order.queue, step.wait)
        if not step.deliveries:
            return self.done.done()
        if self.done.done():
            self._getting.give_back(self._order.queue, step.deliveries)
        else:
            self.done.set_result(step)
        return True

    def fail(self, error: HeadwayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Getting:
    """All Gets of this process."""

    def __init__(self, store: Store, lines: Lines, spawn: Spawn) -> None:
        self.store = store
        self._lines = lines
        self._spawn = spawn
        self._waits: dict[str, Wait] = {}

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        """See Engine.get."""
        budget = Budget(budget_s)
        settled: list[Settlement] = []
        is_behind_others = self._lines.waiting_on(order.queue) > 0
        if is_behind_others and not order.wait_ms:
            await self._lines.let_try(order.queue, timeout_s=budget.left_s)
            is_behind_others = self._lines.waiting_on(order.queue) > 0
        if not is_behind_others or order.ack or order.attempt_id or not order.wait_ms:
            # A holder that settles goes on with the next message, and who repeats a call gets what it was given before;
            # everybody else stands behind those who wait.
            step = await self._first_try(replace(order, only_if_settled=is_behind_others), budget.left_s)
            settled = list(step.settled)
            if step.deliveries or not order.wait_ms or (order.ack and step.wait is Wait.NOTHING):
                return self._outcome(order, step, settled)
        step = await self._wait(replace(order, ack=()), budget_s, has_settled=bool(order.ack))
        return self._outcome(order, step, settled)

    def _outcome(self, order: GetOrder, step: GetStep, settled: list[Settlement]) -> GetOutcome:
        if not step.deliveries and not settled:
            if step.wait is Wait.ROLE:
                raise RoleInUse.of(order.queue, role="consumer", holder=step.holder)
            if step.wait is Wait.PAUSED and not order.wait_ms:
                raise QueuePaused(f"queue {order.queue!r} is paused", metadata={"queue": order.queue})
        return GetOutcome(deliveries=step.deliveries, settled=settled)

    async def _first_try(self, order: GetOrder, budget_s: float) -> GetStep:
        """One step that survives its caller: cancelled, it gives back what it is given."""
        task = asyncio.ensure_future(self.store.get(order, budget_s=budget_s))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._give_back_late(order.queue, task), f"late:{order.queue}")
            raise

    async def _wait(self, order: GetOrder, budget_s: float, *, has_settled: bool) -> GetStep:
        waiter = _Waiter(order, self, budget_s)
        line = self._lines.join(order.queue, waiter)
        nothing = GetStep(deliveries=(), settled=())
        try:
            await asyncio.wait({waiter.done}, timeout=order.wait_ms / 1000)
            if not waiter.done.done():
                await line.leave(waiter)
        except asyncio.CancelledError:
            line.forget(waiter)
            if not waiter.done.cancel():
                self._spawn(self._give_back_late(order.queue, waiter.done), f"late:{order.queue}")
            raise
        if waiter.done.done():
            try:
                return waiter.done.result()
            except HeadwayError:
                if has_settled:
                    return nothing
                raise
        waiter.done.cancel()
        if not has_settled:
            await self._make_sure(order, line, budget_s)
        return waiter.last or nothing

    async def _make_sure(self, order: GetOrder, line: Line, budget_s: float) -> None:
        """A store that is down is never "empty": whoever leaves with nothing must have heard of it lately, by the tries
        of the first in line or by looking now."""
        if line.trouble is not None:
            raise line.trouble
        if asyncio.get_running_loop().time() - line.heard_at < _SURE_FOR_S:
            return
        try:
            look_s = max(order.wait_ms / 1000 * _LAST_LOOK_SHARE, _LEAST_LAST_LOOK_S)
            await self.store.describe(order.queue, budget_s=min(budget_s, look_s))
        except QueueNotFound as error:
            raise QueueDeleted(f"queue {order.queue!r} was deleted", metadata=error.metadata) from None

    # -- what the line must know -------------------------------------------------------------------------------------

    def note_wait(self, queue: str, wait: Wait) -> None:
        """Remembers what is waited for on this queue, while somebody waits."""
        if wait is Wait.NOTHING:
            self._waits.pop(queue, None)
        else:
            self._waits[queue] = wait

    def needs_leases(self, queue: str) -> bool:
        """Whether a settled lease may end a wait here: a slot is waited for, or the queue may be closed and
        draining."""
        return self._waits.get(queue) in (Wait.SLOT, Wait.DRAIN)

    def line_ended(self, queue: str) -> None:
        """Nobody waits on this queue any more."""
        self._waits.pop(queue, None)

    # -- giving back -------------------------------------------------------------------------------------------------

    async def _give_back_late(self, queue: str, answer: asyncio.Future[GetStep]) -> None:
        """Releases what an answer brings whose caller has gone. A task of its own, so that stopping waits for it."""
        await asyncio.wait({answer})
        if not answer.cancelled() and answer.exception() is None and (deliveries := answer.result().deliveries):
            await self._release(queue, [delivery.lease for delivery in deliveries])

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Releases leases in the background: nobody holds them."""
        if deliveries:
            self._spawn(self._release(queue, [delivery.lease for delivery in deliveries]), f"release:{queue}")

    async def _release(self, queue: str, leases: list[str]) -> None:
        for attempt in range(_RELEASE_TRIES):
            try:
                await self.store.release(queue, leases, budget_s=_RELEASE_BUDGET_S)
            except HeadwayError as error:
                log.info("release.failed", queue=queue, count=len(leases), reason=error.reason.name)
                await asyncio.sleep(_RELEASE_PAUSE_S * 2**attempt)
            else:
                return
