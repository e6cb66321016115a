"""Expected waits for those who ask now and then: an estimate needs looks that follow each other closely, so a queue
that was asked about is watched for a while.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import structlog

from headwayd.domain.errors import HeadwayError
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.watching import ToldQueue
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.estimates import Estimates
from headwayd.engine.watching.watching import Watching

WATCHED_FOR_S = 120.0  # after the last question; autoscalers ask every 15 to 30 s
_LOOK_EVERY_S = 1.0
_MOST_WATCHED = 1_000  # as many as estimators are kept
log = structlog.get_logger(__name__)


class Forecasts:
    """Of all queues that were asked about lately. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        watching: Watching,
        estimates: Estimates,
        spawn: Spawn,
    ) -> None:
        self._store = store
        self._watching = watching
        self._estimates = estimates
        self._spawn = spawn
        self._until: dict[str, float] = {}  # those that are watched
        self._seen: dict[str, str] = {}  # of these, which life of the queue was looked at last

    async def of(self, queue: str, *, budget_s: float) -> ToldQueue:
        """The queue now, and what a message put now is expected to wait. The first answers about a queue have no basis
        for that, because what was learned before may be of another day, or of another queue of the name; nor has any
        beyond the most queues that are watched at a time."""
        found = await self._store.describe(queue, budget_s=budget_s)
        self._watch(queue)
        is_followed = self._seen.get(queue) == found.generation
        eta = self._estimates.of(queue).estimate(found.counts.length + 1) if is_followed else None
        return ToldQueue(found, found.at_ms, eta)

    def _watch(self, queue: str) -> None:
        is_watched = queue in self._until
        if not is_watched and len(self._until) >= _MOST_WATCHED:
            return
        self._until[queue] = asyncio.get_running_loop().time() + WATCHED_FOR_S
        if not is_watched:
            self._spawn(self._follow(queue), f"forecast:{queue}")

    async def _follow(self, queue: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (until := self._until[queue]) > loop.time():
                await self._follow_until(until, queue)
        except HeadwayError as error:  # the queue is gone, or the store: the next question begins anew
            log.debug("forecast.ended", queue=queue, reason=error.reason.name)
        finally:
            del self._until[queue]
            self._seen.pop(queue, None)

    async def _follow_until(self, until: float, queue: str) -> None:
        looks = self._watching.queue(queue, _LOOK_EVERY_S, budget_s=STORE_BUDGET_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until), aclosing(looks) as told:
                async for one in told:  # whoever reads it teaches the queue's estimator
                    self._seen[queue] = one.queue.generation
