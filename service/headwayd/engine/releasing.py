"""Leases whose holders have gone: given back at no attempt's cost, together where many go at once.

When a process with thousands of leases dies, they go back in many steps of the store. One large step is on its way at
a time, or as many small ones, of different queues, as take the store no longer: so whoever asks for something else
waits for no more than that, and with a store that is far away many queues do not wait for each other. Of those of a
queue the last go first: so each batch goes to the head before the ones before, and none of these has to be moved out
of its way.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.engine.leaving import surely
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn

MOST_AT_ONCE = 200  # leases in one step: some milliseconds of the store
STEP = 10  # leases in whose place a step counts by itself, however few it has


@dataclass(slots=True, eq=False)
class _Part:
    """What one has left behind, and who waits until all of it is back."""

    left: int
    done: asyncio.Future[None]


_Entry = tuple[int, int, str, _Part]  # the last ticket is the least; the second tells apart
_Group = tuple[str, bool, str, bytes]  # a queue, whether they are owned, whose only, and by which claim


class _Room:
    """What the steps on their way may be together. Who comes first goes first, so that a large one gets its turn."""

    def __init__(self) -> None:
        self._free = STEP + MOST_AT_ONCE
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, leases: int) -> AsyncIterator[None]:
        """As much as a step of so many takes, once it is there."""
        size = STEP + leases
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._free += size
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():  # else it was cancelled
                if size > self._free:
                    return
                self._free -= size
                turn.set_result(None)
            self._waiting.popleft()


class Releases:
    """Those of this process. `spawn` runs what works in the background."""

    def __init__(self, store: Store, spawn: Spawn) -> None:
        self._store = store
        self._spawn = spawn
        self._waiting: dict[_Group, list[_Entry]] = {}
        self._numbers: Iterator[int] = itertools.count()
        self._room = _Room()

    async def release(
        self, queue: str, leases: Sequence[str], *, owned: bool, owner: str = "", claim: bytes = b""
    ) -> None:
        """Returns when all are back, or the queue is no more, however long that takes. `owned`, `owner`, `claim`: see
        `Store.release`. Cancelled, it has asked for it all the same."""
        if not leases:
            return
        part = _Part(len(leases), asyncio.get_running_loop().create_future())
        group = (queue, owned, owner, claim)
        is_first = group not in self._waiting
        waiting = self._waiting.setdefault(group, [])
        for lease in leases:
            heapq.heappush(waiting, (-self._store.ticket_of(lease), next(self._numbers), lease, part))
        if is_first:
            self._spawn(self._serve(group, waiting), f"release:{queue}")
        await part.done

    async def _serve(self, group: _Group, waiting: list[_Entry]) -> None:
        taken: list[_Entry] = []
        try:
            while waiting:
                taken = [heapq.heappop(waiting) for _ in range(min(len(waiting), MOST_AT_ONCE))]
                try:
                    await self._step(group, taken)
                except Exception as error:  # noqa: BLE001 - also a defect is told to those who asked, and stops nobody else
                    for *_, part in taken:
                        if not part.done.done():
                            part.done.set_exception(error)
        finally:  # without an await since the last look: nobody can have come to what is not served
            del self._waiting[group]
            for *_, part in (*taken, *waiting):
                part.done.cancel()

    async def _step(self, group: _Group, taken: Sequence[_Entry]) -> None:
        queue, owned, owner, claim = group
        leases = [lease for _, _, lease, _ in reversed(taken)]  # in ticket order they are named by their first

        async def release() -> None:
            async with self._room.of(len(leases)):
                await self._store.release(queue, leases, owned=owned, owner=owner, claim=claim, budget_s=STORE_BUDGET_S)

        await surely(queue, release, until_then="leases.not_given_back")
        for *_, part in taken:
            part.left -= 1
            if not part.left and not part.done.done():
                part.done.set_result(None)
