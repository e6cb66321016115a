"""Notices that other processes have gone, and ends what they left standing in line.

No process keeps a heartbeat: the store knows who listens to it. Each looks twice a second who does. One that has been
missing for a while, and not only between two connections, is gone; then each process tidies the queues that somebody
waits on here, and the first of them by name tidies all queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import structlog

from headwayd.domain.errors import HeadwayError, NewerLayout, OutcomeUnknown, StoreUnavailable
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.engine.budgets import LIST_BUDGET_S
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn

LOOK_EVERY_S = 0.5
GONE_AFTER_S = 2.0
_AT_ONCE = 16
_LONGEST_PAUSE_S = 30.0
_BEFORE = ""  # whoever went before the first look
log = structlog.get_logger(__name__)


class Absence:
    """Looks until it is stopped. `waited_on` tells the queues that somebody waits on in this process."""

    def __init__(self, store: Store, spawn: Spawn, *, process: str, waited_on: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._spawn = spawn
        self._process = process
        self._waited_on = waited_on
        self._known: frozenset[str] = frozenset({_BEFORE})
        self._missing_since: dict[str, float] = {}
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """`run` ends at once."""
        self._stopped.set()

    async def run(self) -> None:
        """Runs until stopped."""
        while not self._stopped.is_set():
            await self._look()
            await self._pause(LOOK_EVERY_S)

    async def _look(self) -> None:
        try:
            present = await self._store.processes(budget_s=STORE_BUDGET_S)
        except HeadwayError:
            present = frozenset()
        now = asyncio.get_running_loop().time()
        if self._process not in present:  # whoever is not heard cannot tell who else is not
            self._missing_since.clear()
            return
        gone = self.gone(present, now)
        if gone:
            log.debug("processes.gone", processes=sorted(gone - {_BEFORE}))
            self._spawn(self._tidy(is_first=self._process == min(present)), "absence")

    def gone(self, present: frozenset[str], now: float) -> set[str]:
        """Those who have been missing for long enough; each is told once."""
        missing = self._known - present
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        gone = {name for name, since in self._missing_since.items() if now - since >= GONE_AFTER_S}
        self._known = (self._known | present) - gone
        return gone

    async def _tidy(self, *, is_first: bool) -> None:
        """Until it is done: who has gone is told of once."""
        known = set(self._waited_on())
        left = await self._drop_absent(known)
        is_listed = not is_first
        for pause_s in _pauses():
            if not is_listed:
                names, missing = await self._store.names_with_own_keys(budget_s=LIST_BUDGET_S)
                left |= await self._drop_absent(set(names) - known)
                known.update(names)
                if not (is_listed := missing is None):
                    log.info("absence.not_listed", reason=missing.reason.name)
            if self._stopped.is_set() or (is_listed and not left):
                return
            await self._pause(pause_s)
            left = await self._drop_absent(left)

    async def _drop_absent(self, queues: set[str]) -> set[str]:
        """At which it was not done, because the store was away. Whoever is missing for a moment keeps what it has."""
        to_do = iter(queues)
        left: set[str] = set()

        async def drop_some() -> None:
            for queue in to_do:
                try:
                    await self._store.drop_absent(queue, spared=self._known, budget_s=STORE_BUDGET_S)
                except NewerLayout:  # nothing can be done here; a process of that version does it
                    log.info("absence.left_alone", queue=queue)
                except HeadwayError as error:
                    log.info("absence.not_tidied", queue=queue, reason=error.reason.name)
                    if isinstance(error, StoreUnavailable | OutcomeUnknown):
                        left.add(queue)

        # Not a task for each queue: ten thousand that begin in one turn of the loop would hold up all calls.
        await asyncio.gather(*(drop_some() for _ in range(_AT_ONCE)))
        return left

    async def _pause(self, seconds: float) -> None:
        """A stop cuts it short."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass


def _pauses() -> Iterator[float]:
    """Before one try and the next, in seconds: doubling."""
    pause_s = LOOK_EVERY_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
