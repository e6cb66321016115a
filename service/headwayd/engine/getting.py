"""Get: at once if there is something and nobody stands before, else in line until there is; and never a lease left with
a caller who has gone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from headwayd.domain.errors import HeadwayError, QueueDeleted, QueueNotFound, QueuePaused, RoleInUse, StoreUnavailable
from headwayd.domain.model import GetOrder, Settlement
from headwayd.domain.standing import PLACE_MARK, GetOutcome, Standing
from headwayd.domain.waiting import wait_for
from headwayd.engine.budgets import Budget
from headwayd.engine.consumers import Consumer, Consumers
from headwayd.engine.flowing import FlowingGets
from headwayd.engine.ports import GetStep, Wait
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.estimates import Estimates

_NOTHING = GetStep(deliveries=(), settled=())


def new_place() -> str:
    """A name for a kept place that nobody guesses."""
    return PLACE_MARK + secrets.token_urlsafe(16)


class Getting:
    """All Gets of this process."""

    def __init__(
        self,
        consumers: Consumers,
        estimates: Estimates,
        spawn: Spawn,
        *,
        goes_together: bool = True,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._consumers = consumers
        self._estimates = estimates
        self._flows = FlowingGets(consumers, spawn, goes_together=goes_together, on_step=on_step)

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        """See Engine.get."""
        budget = Budget(budget_s)
        waits = order.wait_ms > 0 or order.stands
        consumer = self._consumers.enter(order, budget_s=budget_s, waits=waits)
        tries = self._flows if self._flows.may_take(consumer) else self._consumers
        step = await tries.first_try(consumer, budget_s)
        self._flows.note(order.queue, step)
        try:
            return await self._go_on(consumer, step, waits=waits, budget=budget)
        except HeadwayError:
            if not step.settled:
                raise
            return GetOutcome(deliveries=(), settled=step.settled)

    async def _go_on(self, consumer: Consumer, step: GetStep, *, waits: bool, budget: Budget) -> GetOutcome:
        """After its first try. What that settled is told, whatever comes now."""
        settled = step.settled
        order = consumer.order = consumer.order.within_room(step.ended)
        if step.left and not step.deliveries and not order.wait_ms:
            step = await self._look_behind(consumer, budget)
        if step.deliveries or not waits or (order.ack and step.wait is Wait.NOTHING):
            return self._outcome(order, step, settled)
        consumer.order = order._replace(ack=(), place="")
        if not order.max_messages and not order.stands:  # nothing that comes would be for it
            self._consumers.give_up(consumer)
        elif order.max_messages and order.wait_ms:
            step = await self._wait(consumer, has_settled=bool(settled))
        if step.deliveries or not order.stands:
            return self._outcome(order, step, settled)
        look_s = order.look_ms / 1000 if order.wait_ms else budget.left_s
        standing = await self._keep_place(consumer, order.place or new_place(), min(look_s, consumer.budget_s))
        return GetOutcome(deliveries=(), settled=settled, standing=standing)

    async def _look_behind(self, consumer: Consumer, budget: Budget) -> GetStep:
        """There is something behind messages that have expired, of which a step takes away so many and no more. A call
        whose time is over before all are gone cannot say that there is nothing."""
        consumer.order = consumer.order._replace(ack=(), place="")
        try:
            step = await self._consumers.first_try(consumer, budget.left_s)
            while step.left and not step.deliveries:
                step = await self._consumers.first_try(consumer, budget.left_s)
        except StoreUnavailable:
            self._consumers.give_up(consumer)
            raise
        return step

    @staticmethod
    def _outcome(order: GetOrder, step: GetStep, settled: Sequence[Settlement]) -> GetOutcome:
        if not step.deliveries and not settled:
            if step.wait is Wait.ROLE:
                raise RoleInUse.of(order.queue, role="consumer", holder=step.holder)
            if step.wait is Wait.PAUSED and not order.wait_ms:
                raise QueuePaused(f"queue {order.queue!r} is paused", metadata={"queue": order.queue})
        return GetOutcome(deliveries=step.deliveries, settled=settled)

    async def _wait(self, consumer: Consumer, *, has_settled: bool) -> GetStep:
        """Stands in line until its turn or its time is over; then it has left the line, unless it asks to stand on."""
        order = consumer.order
        line = self._consumers.join(consumer, has_tried=True)
        try:
            why_not = await wait_for(consumer.given, order.cut_off, timeout_s=order.wait_ms / 1000)
            if not consumer.given.done():
                await line.leave(consumer)
        except asyncio.CancelledError:
            line.forget(consumer)
            self._consumers.give_up_all(consumer, has_left=False)
            raise
        error: BaseException | None
        if consumer.given.done():
            error = consumer.given.exception()
            if error is None:
                return consumer.given.result()
        else:
            consumer.given.cancel()
            error = why_not or line.trouble  # a store that is down is never "empty"
        error = consumer.unknown or error  # it may have leased, whatever came behind that
        if error is not None:
            self._consumers.give_up(consumer)
            raise error
        if not order.stands and has_settled:  # that is told, whatever else there is
            self._consumers.give_up(consumer)
        elif not order.stands:
            return await self._look_and_leave(consumer)
        return consumer.last or _NOTHING

    async def _look_and_leave(self, consumer: Consumer) -> GetStep:
        """Nothing came. That the store takes the leave shows that it is not down. A role that it found taken may have
        been free for long, because only who is first in line tries again: so it looks once more before it says so."""
        budget = Budget(consumer.order.look_ms / 1000)
        if consumer.last is not None and consumer.last.wait is Wait.ROLE:
            try:
                step = await self._consumers.first_try(consumer, budget.left_s)
            except QueueNotFound:
                raise QueueDeleted.of(consumer.order.queue) from None
            except StoreUnavailable:
                self._consumers.give_up(consumer)
                raise
            if step.deliveries:
                return step
        await self._consumers.shielded(consumer, self._consumers.stop_standing(consumer, budget_s=budget.left_s))
        return consumer.last or _NOTHING

    async def _keep_place(self, consumer: Consumer, place: str, budget_s: float) -> Standing:
        """The place stays when the call ends. A caller who goes away just now does not learn of it, and it lapses."""
        keeping = self._consumers.keep_place(consumer, place, budget_s=budget_s)
        standing, numbers = await self._consumers.shielded(consumer, keeping)
        estimator = self._estimates.of(consumer.order.queue)
        estimator.observe(numbers)
        return replace(standing, eta=estimator.estimate_slot(standing.position))
