"""A store whose steps with messages are counted, once for all calls that went together in one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from headwayd.domain.model import DelayOrder, Delivery, GetOrder, NewMessage, PutCode, Settled, Settlement
from headwayd.domain.standing import Waiter
from headwayd.engine.counting.counts import Counts, QueueCounts, add
from headwayd.engine.ports import GetStep, PutStep, Store

# Leases of which it is remembered when they began: their acks tell how long the work took. About 200 bytes each.
_MOST_LEASES = 50_000
_PUT = frozenset({PutCode.QUEUED, PutCode.DELAYED, PutCode.REPLACED})
_HOW = {one: one.name.lower() for one in Settled}
CALL_GONE, STREAM_ENDED = "call_gone", "stream_ended"


def counted(store: Store, counts: Counts) -> Store:
    """The same store; what its steps do is counted."""
    return cast(Store, _CountedStore(store, counts))


class _CountedStore:
    """Passes on everything; what is not named here is not counted."""

    def __init__(self, store: Store, counts: Counts) -> None:
        self._store = store
        self._counts = counts
        self._leased_at: dict[str, float] = {}  # in the order of time
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, queue: str, messages: Sequence[NewMessage], **options: Any) -> PutStep:
        """See Store."""
        step = await self._store.put(queue, messages, **options)
        put = deduplicated = 0
        for outcome in step.outcomes:
            if outcome.code in _PUT:
                put += 1
            elif outcome.code is PutCode.KEPT:
                deduplicated += 1
        counts = self._counts.of(queue)
        counts.put += put
        counts.deduplicated += deduplicated
        return step

    async def get(
        self, order: GetOrder, *, budget_s: float, waiter: Waiter | None = None, is_shared: bool = False
    ) -> GetStep:
        """See Store."""
        step = await self._store.get(order, budget_s=budget_s, waiter=waiter, is_shared=is_shared)
        counts = self._counts.of(order.queue)
        if step.settled:
            self._note_settled(counts, step.settled)
        if step.deliveries:
            self._note_delivered(counts, step.deliveries)
        return step

    async def ack(
        self, queue: str, leases: Sequence[str], *, budget_s: float, result: bytes = b""
    ) -> Sequence[Settlement]:
        """See Store."""
        settled = await self._store.ack(queue, leases, budget_s=budget_s, result=result)
        self._note_settled(self._counts.of_known(queue), settled)
        return settled

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        """See Store."""
        settled = await self._store.delay(order, budget_s=budget_s)
        self._note_settled(self._counts.of_known(order.queue), [one for one in settled if one.lease])
        return settled

    async def release(
        self, queue: str, leases: Sequence[str], *, budget_s: float, owned: bool = False
    ) -> Sequence[Settlement]:
        """See Store."""
        settled = await self._store.release(queue, leases, budget_s=budget_s, owned=owned)
        for one in settled:
            self._leased_at.pop(one.lease, None)
        released = sum(one.settled is Settled.RELEASED for one in settled)
        if released:
            add(self._counts.released, STREAM_ENDED if owned else CALL_GONE, released)
        return settled

    def _note_delivered(self, counts: QueueCounts, deliveries: Sequence[Delivery]) -> None:
        leased_at, wait, now = self._leased_at, counts.wait, self._loop.time()
        for _, _, _, lease, _, attempt, _, _, waited_ms in deliveries:
            if lease in leased_at:  # the same attempt to get, asked again
                continue
            leased_at[lease] = now
            counts.delivered += 1
            if attempt > 1:
                counts.redelivered += 1
            elif waited_ms is not None:
                wait.note(waited_ms / 1_000)
        while len(leased_at) > _MOST_LEASES:
            del leased_at[next(iter(leased_at))]

    def _note_settled(self, counts: QueueCounts, settled: Sequence[Settlement]) -> None:
        leased_at, now = self._leased_at, self._loop.time()
        for lease, how, _, _, _ in settled:
            if how is Settled.EXTENDED:
                continue
            add(counts.settled, _HOW[how])
            began = leased_at.pop(lease, None)
            if began is not None and how is Settled.ACKED:
                counts.work.note(now - began)
