"""A store whose steps with messages are counted, once for all calls that went together in one."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.domain.errors import QueueDrained
from headwayd.domain.joined import Joined
from headwayd.domain.leases import STEP_AT, step_of, steps_of
from headwayd.domain.model import DelayOrder, Delivery, GetOrder, NewMessage, PutCode, Settled, Settlement
from headwayd.domain.standing import Waiter
from headwayd.engine.counting.counts import Counts, QueueCounts, add
from headwayd.engine.ports import GetAsk, GetStep, PutStep, Store

# Leases of which it is remembered when they began: their acks tell how long the work took. About 300 bytes for those of
# one step.
_MOST_LEASES = 50_000
_ENDED = {Settled.ACKED, Settled.RELEASED, Settled.DELAYED, Settled.DEAD}  # just now
_HOW = {one: one.name.lower() for one in Settled}
_ACKED = _HOW[Settled.ACKED]
CALL_GONE, STREAM_ENDED = "call_gone", "stream_ended"


def counted(store: Store, counts: Counts) -> Store:
    """The same store; what its steps do is counted."""
    return cast(Store, _CountedStore(store, counts))


class _CountedStore:
    """Passes on everything; what is not named here is not counted."""

    def __init__(self, store: Store, counts: Counts) -> None:
        self._store = store
        self._counts = counts
        self._leased_at: dict[str, tuple[float, int]] = {}  # by step, in the order of time; how many have not ended
        self._lease_count = 0  # of all steps
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, queue: str, messages: Sequence[NewMessage], **options: Any) -> PutStep:
        """See Store."""
        step = await self._store.put(queue, messages, **options)
        if type(step.outcomes) is Joined:
            self._counts.of(queue).put += len(step.outcomes)
            return step
        codes = [outcome[0] for outcome in step.outcomes]
        put = codes.count(PutCode.QUEUED)
        counts = self._counts.of(queue)
        if put != len(codes):
            put += codes.count(PutCode.DELAYED) + codes.count(PutCode.REPLACED)
            counts.deduplicated += codes.count(PutCode.KEPT)
        counts.put += put
        return step

    async def get(self, order: GetOrder, *, budget_s: float, waiter: Waiter | None = None) -> GetStep:
        """See Store."""
        step = await self._store.get(order, budget_s=budget_s, waiter=waiter)
        self._note_got(order.queue, step)
        return step

    async def get_together(self, asks: Sequence[GetAsk], *, budget_s: float) -> Sequence[GetStep | QueueDrained]:
        """See Store."""
        steps = await self._store.get_together(asks, budget_s=budget_s)
        for ask, step in zip(asks, steps, strict=True):
            if isinstance(step, GetStep):
                self._note_got(ask.order.queue, step)
        return steps

    def _note_got(self, queue: str, step: GetStep) -> None:
        counts = self._counts.of(queue)
        if step.settled:
            self._note_settled(counts, step.settled)
        if step.deliveries:
            self._note_delivered(counts, step.deliveries)

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
        self,
        queue: str,
        leases: Sequence[str],
        *,
        budget_s: float,
        owned: bool = False,
        owner: str = "",
        claim: bytes = b"",
    ) -> Sequence[Settlement]:
        """See Store."""
        settled = await self._store.release(queue, leases, budget_s=budget_s, owned=owned, owner=owner, claim=claim)
        for one in settled:
            if one.settled in _ENDED:
                self._ended(step_of(one.lease))
        released = sum(one.settled is Settled.RELEASED for one in settled)
        if released:
            add(self._counts.released, STREAM_ENDED if owned else CALL_GONE, released)
        return settled

    # These loops take a good part of what counting costs: so what messages of a step have in common is worked out once.

    def _note_delivered(self, counts: QueueCounts, deliveries: Sequence[Delivery]) -> None:
        leased_at, wait = self._leased_at, counts.wait
        if type(deliveries) is FirstDeliveries:
            if leased_at.keys().isdisjoint(steps := steps_of(deliveries.leases)):
                self._begin(steps)
                counts.delivered += len(deliveries)
                for put_at_ms, count in Counter(deliveries.put_at_ms).items():
                    if put_at_ms:
                        wait.note(deliveries.waited_ms(put_at_ms) / 1_000, count)
            return
        bounds, buckets = wait.bounds, wait.counts
        delivered = at = 0
        waited_before_ms = -1
        begun: dict[str, int] = {}
        for _, _, _, lease, _, attempt, _, _, waited_ms in deliveries:
            step = lease[STEP_AT:] or lease  # as step_of says
            if step in leased_at:  # the same attempt to get, asked again
                continue
            begun[step] = begun.get(step, 0) + 1
            delivered += 1
            if attempt > 1:
                counts.redelivered += 1
            elif waited_ms is not None:
                if waited_ms != waited_before_ms:
                    at, waited_before_ms = bisect_left(bounds, waited_ms / 1_000), waited_ms
                buckets[at] += 1
                wait.total += waited_ms / 1_000
        counts.delivered += delivered
        self._begin(begun)

    def _begin(self, steps: Mapping[str, int]) -> None:
        leased_at, now = self._leased_at, self._loop.time()
        for step, count in steps.items():
            leased_at[step] = now, count
            self._lease_count += count
        while self._lease_count > _MOST_LEASES:
            _, left = leased_at.pop(next(iter(leased_at)))
            self._lease_count -= left

    def _ended(self, step: str, count: int = 1) -> float | None:
        """So many more leases of a step have ended. When they began; None if that is not known."""
        began, left = self._leased_at.get(step, (None, 0))
        if began is None:
            return None
        self._lease_count -= min(count, left)
        if left > count:
            self._leased_at[step] = began, left - count
        else:
            del self._leased_at[step]
        return began

    def _note_settled(self, counts: QueueCounts, settled: Sequence[Settlement]) -> None:
        work, now = counts.work, self._loop.time()
        acked: dict[str, int] = {}
        if type(settled) is FirstAcks:
            acked = steps_of(settled.leases)
        else:
            is_acked = Settled.ACKED
            for lease, how, _, _, _ in settled:
                if how is is_acked:
                    step = lease[STEP_AT:] or lease  # as step_of says
                    acked[step] = acked.get(step, 0) + 1
                elif how is not Settled.EXTENDED:
                    add(counts.settled, _HOW[how])
                    if how in _ENDED:
                        self._ended(step_of(lease))
        if acked:
            add(counts.settled, _ACKED, sum(acked.values()))
        for step, count in acked.items():
            began = self._ended(step, count)
            if began is not None:
                work.note(now - began, count)
