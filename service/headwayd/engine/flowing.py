"""Gets on a queue that flows: those that come at the same time are one step of the store, which also settles for all.

It flows while messages are there for whoever asks, and has no limit of slots. Anyone who finds nothing asks alone, and
stands in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headwayd.domain.errors import HeadwayError
from headwayd.domain.model import Delivery, GetOrder, Settlement
from headwayd.engine.coalescing import Coalescer, shared_out
from headwayd.engine.consumers import Consumers
from headwayd.engine.ports import GetStep

_MOST_TOGETHER = 1_000  # messages and settled leases of several Gets in one step
_MOST_QUEUES = 10_000  # that are known to flow
_Share = tuple[Sequence[Delivery], Sequence[Settlement]]  # of a step: what one Get was given, and what it settled
_Kind = tuple[str, str, int]  # what must be the same for Gets to go together: queue, consumer, lease_ms


class FlowingGets:
    """All of this process. Only what `may_take` says may be asked of it."""

    def __init__(
        self,
        consumers: Consumers,
        spawn: Callable[[Awaitable[None], str], None],
        *,
        goes_together: bool,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._consumers = consumers
        self._goes_together = goes_together
        self._queues: set[str] = set()
        self._together: Coalescer[_Kind, GetOrder, _Share] = Coalescer(
            self._get_together,
            spawn,
            name="get",
            most_items=_MOST_TOGETHER,
            unclaimed=self._give_back,
            on_step=on_step,
        )

    def note(self, queue: str, step: GetStep) -> None:
        """Learns from a step on a queue whether it flows."""
        if not step.deliveries or step.limit:
            self._queues.discard(queue)
            return
        if len(self._queues) >= _MOST_QUEUES:
            self._queues.clear()
        self._queues.add(queue)

    def may_take(self, order: GetOrder) -> bool:
        """Whether it can go together with others."""
        is_flowing = self._goes_together and order.queue in self._queues
        return is_flowing and not (order.attempt_id or order.stands or order.place)

    async def get(self, order: GetOrder, *, budget_s: float) -> _Share:
        """What there was for it, and what it settled; nothing does not mean that the queue is empty. Leases are given
        back if the caller has gone. Raises what the store does."""
        kind = (order.queue, order.consumer, order.lease_ms)
        items = order.max_messages + len(order.ack)
        return await self._together.ask(kind, order, items=items, budget_s=budget_s)

    async def _get_together(self, kind: _Kind, orders: list[GetOrder], budget_s: float) -> Sequence[_Share]:
        queue, consumer, lease_ms = kind
        whole = GetOrder(
            queue=queue,
            consumer=consumer,
            lease_ms=lease_ms,
            max_messages=sum(order.max_messages for order in orders),
            max_bytes=orders[0].max_bytes,
            ack=[lease for order in orders for lease in order.ack],
        )
        began = asyncio.get_running_loop().time()
        try:
            step = await self._consumers.store.get(whole, is_shared=len(orders) > 1, budget_s=budget_s)
        except HeadwayError:
            self._queues.discard(queue)
            raise
        self._consumers.busyness.note(asyncio.get_running_loop().time() - began)
        self._consumers.note(queue, step)
        self.note(queue, step)
        return self._shared_out(step, orders)

    @staticmethod
    def _shared_out(step: GetStep, orders: Sequence[GetOrder]) -> Sequence[_Share]:
        """To each in turn as much as it asked for."""
        given = shared_out(step.deliveries, (order.max_messages for order in orders))
        settled = shared_out(step.settled, (len(order.ack) for order in orders))
        return list(zip(given, settled, strict=True))

    def _give_back(self, _kind: _Kind, order: GetOrder, share: _Share) -> None:
        deliveries, settled = share
        consumer = self._consumers.enter(order, budget_s=0, waits=False)
        self._consumers.give_back(consumer, GetStep(deliveries=deliveries, settled=settled))
