"""Gets that come at the same time go to the store together: one step, which settles for all, leases for all, and lets
those stand in line for whom there is nothing.

Where a queue has slots, each asks alone: a holder that settles and asks for the next keeps its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, QueueDrained
from headwayd.engine.coalescing import Coalescer
from headwayd.engine.consumers import MOST_TOGETHER, Consumer, Consumers, Kind
from headwayd.engine.ports import GetStep
from headwayd.engine.tasks import Spawn

_MOST_QUEUES = 10_000  # that are known to have no slots


class FlowingGets:
    """All of this process. Only what `may_take` says may be asked of it."""

    def __init__(
        self,
        consumers: Consumers,
        spawn: Spawn,
        *,
        goes_together: bool,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._consumers = consumers
        self._goes_together = goes_together
        self._queues: set[str] = set()
        self._together: Coalescer[Kind, Consumer, GetStep | QueueDrained] = Coalescer(
            self._ask_together,
            spawn,
            name="get",
            most_items=MOST_TOGETHER,
            unclaimed=self._give_up,
            failed=self._leave,
            on_step=on_step,
        )

    def note(self, queue: str, step: GetStep) -> None:
        """Learns from a step on a queue whether it has slots."""
        if step.limit:
            self._queues.discard(queue)
        elif queue not in self._queues:
            if len(self._queues) >= _MOST_QUEUES:
                self._queues.clear()
            self._queues.add(queue)

    def may_take(self, consumer: Consumer) -> bool:
        """Whether it can go together with others."""
        return self._goes_together and consumer.order.queue in self._queues and consumer.kind is not None

    async def first_try(self, consumer: Consumer, budget_s: float) -> GetStep:
        """One step. When its caller has gone before that has begun nothing happens; later it gives back what it is
        given, and the place. Raises what the store does."""
        kind, order = consumer.kind, consumer.order
        assert kind is not None
        items = order.max_messages + len(order.ack)
        try:
            step = await self._together.ask(kind, consumer, items=items, budget_s=budget_s)
        except OutcomeUnknown as error:
            self._leave(kind, consumer, error)
            raise
        if isinstance(step, QueueDrained):
            raise step
        return step

    async def _ask_together(
        self, kind: Kind, consumers: list[Consumer], budget_s: float
    ) -> Sequence[GetStep | QueueDrained]:
        if len(consumers) == 1:
            return [await consumers[0].step(budget_s)]
        try:
            return await self._consumers.ask_together(consumers, budget_s=budget_s)
        except HeadwayError:
            self._queues.discard(kind.queue)
            raise

    def _give_up(self, _kind: Kind, consumer: Consumer, step: GetStep | QueueDrained) -> None:
        if isinstance(step, QueueDrained):
            return
        if step.deliveries:
            self._consumers.give_back(consumer, step)
        else:
            self._consumers.give_up(consumer)

    def _leave(self, _kind: Kind, consumer: Consumer, error: Exception) -> None:
        """Gives up its place and its leases, if the step may have made some that it will not hear of."""
        if isinstance(error, OutcomeUnknown):
            self._consumers.give_up(consumer)
            self._consumers.leave(consumer)
