"""Settling: leases that callers end, many callers' in one step when there are many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headwayd.domain.model import Settlement
from headwayd.engine.coalescing import Coalescer, shared_out
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn

_MOST_TOGETHER = 1_000  # leases of several Acks in one step


class Settling:
    """All Acks of this process."""

    def __init__(
        self,
        store: Store,
        spawn: Spawn,
        *,
        goes_together: bool = True,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._store = store
        self._acks: Coalescer[str, Sequence[str], Sequence[Settlement]] = Coalescer(
            self._ack_together,
            spawn,
            name="ack",
            most_items=_MOST_TOGETHER,
            outlives=True,
            is_off=not goes_together,
            on_step=on_step,
        )

    async def ack(self, queue: str, leases: Sequence[str], *, result: bytes, budget_s: float) -> Sequence[Settlement]:
        """Settles for good, whether the caller stays or not; one settlement per lease."""
        if result:
            return await asyncio.shield(self._store.ack(queue, leases, result=result, budget_s=budget_s))
        return await self._acks.ask(queue, leases, items=len(leases), budget_s=budget_s)

    async def _ack_together(
        self, queue: str, batches: Sequence[Sequence[str]], budget_s: float
    ) -> Sequence[Sequence[Settlement]]:
        leases = [lease for batch in batches for lease in batch]
        settled = await self._store.ack(queue, leases, budget_s=budget_s)
        return list(shared_out(settled, map(len, batches)))
