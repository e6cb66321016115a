"""The state of all queues, read from the store when somebody asks: with bounded work, and once for all who ask at about
the same time.

Queues with numbers of their own are looked at every time. Of the others each look takes the next few, so that their
sum is as old as it takes to come round. It is not told before it has come round once: it would rise look by look, as if
something happened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import structlog

from headwayd.domain.errors import HeadwayError, NotDurable
from headwayd.domain.model import Queue
from headwayd.engine.budgets import Budget
from headwayd.engine.counting.counts import OTHERS, Counts
from headwayd.engine.ports import Store

FRESH_S = 3.0
_NAMES_EVERY_S = 15.0  # their cost grows with the number of keys in the store
_BUDGET_S, _NAMES_BUDGET_S = 0.9, 0.5
_MOST_OTHERS = 200  # looked at in one look
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """The state of one queue, or of several put together."""

    waiting: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    consumers: int = 0
    producers: int = 0
    acked: int = 0
    lapsed: int = 0
    oldest_age_s: float = 0.0  # the last

    @classmethod
    def of(cls, queue: Queue) -> QueueNumbers:
        """Of one."""
        counts = queue.counts
        return cls(
            waiting=counts.length,
            leased=counts.leased,
            delayed=counts.delayed,
            dead=counts.dead,
            consumers=counts.consumers_waiting,
            producers=counts.producers_waiting,
            acked=counts.acked,
            lapsed=queue.lapsed_count,
            oldest_age_s=(counts.oldest_age_ms or 0) / 1_000,
        )

    @classmethod
    def together(cls, several: Iterable[QueueNumbers]) -> QueueNumbers:
        """Of several, one at least. Column by column: of very many queues one by one would hold up all calls."""
        *sums, ages = zip(*map(_IN_ORDER, several), strict=True)
        return cls(*[*map(sum, sums), max(ages)])


_IN_ORDER = attrgetter(*(field.name for field in fields(QueueNumbers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look found. Without an answer of the store there are no queues; while it takes too long to tell all their
    names, nobody knows how many there are (`queue_count` is None)."""

    is_reachable: bool
    queue_count: int | None = None
    queues: Mapping[str, QueueNumbers]


class Census:
    """Looks when asked."""

    def __init__(self, store: Store, counts: Counts) -> None:
        self._store = store
        self._counts = counts
        self._names: Sequence[str] | None = None
        self._names_at = float("-inf")
        self._others: dict[str, QueueNumbers] = {}  # in the order in which they were looked at
        self._is_whole = False  # every one of the others was looked at
        self._seen: Seen | None = None
        self._seen_at = float("-inf")
        self._looking = asyncio.Lock()

    async def look(self) -> Seen:
        """The state of at most `FRESH_S` ago. Takes no longer than a second, and fails for no store that does."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if self._seen is None or loop.time() > self._seen_at + FRESH_S:
                try:
                    self._seen = await self._ask(Budget(_BUDGET_S))
                except HeadwayError as error:
                    log.debug("census.failed", reason=error.reason.name)
                    self._seen = Seen(is_reachable=False, queues={})
                self._seen_at = loop.time()
            return self._seen

    async def forget_gone(self) -> None:
        """Queues that are no more have no numbers of their own, also where nobody looks. Fails for no store."""
        async with self._looking:
            try:
                await self._describe_own(Budget(_BUDGET_S))
            except HeadwayError as error:
                log.debug("census.failed", reason=error.reason.name)

    async def _describe_own(self, budget: Budget) -> dict[str, Queue]:
        own = list(self._counts.own)
        described = await self._store.describe_many(own, only_known=True, budget_s=budget.left_s)
        found = {queue.name: queue for queue in described}
        for name in own:
            if name not in found:
                self._counts.forget(name)
        return found

    async def _ask(self, budget: Budget) -> Seen:
        await self._learn_names()
        new = self._never_looked_at()
        asked = [*new, *self._others][:_MOST_OTHERS]  # then those where it was longest ago
        if not (self._counts.own or asked):  # what follows would ask the store nothing
            with contextlib.suppress(NotDurable):  # so it answers, though nothing is written to it
                await self._store.ping(budget_s=budget.left_s)
        found = await self._describe_own(budget)
        numbers = {name: QueueNumbers.of(queue) for name, queue in found.items()}
        if asked:
            queues = await self._store.describe_many(asked, only_known=True, budget_s=budget.left_s)
            for name in asked:
                self._others.pop(name, None)
            self._others |= dict.fromkeys(asked, QueueNumbers()) | {each.name: QueueNumbers.of(each) for each in queues}
        self._is_whole = self._is_whole or (self._names is not None and len(new) <= _MOST_OTHERS)
        if self._others and self._is_whole:
            numbers[OTHERS] = QueueNumbers.together(self._others.values())
        count = None if self._names is None else max(len(self._names), len(found))
        return Seen(is_reachable=True, queue_count=count, queues=numbers)

    async def _learn_names(self) -> None:
        """Also queues that nobody uses here are to be seen."""
        now = asyncio.get_running_loop().time()
        if now < self._names_at + _NAMES_EVERY_S:
            return
        try:
            self._names = await self._store.names(None, budget_s=_NAMES_BUDGET_S)
        except HeadwayError as error:  # too many keys for the time, or trouble that the next step meets, too
            log.debug("census.names_failed", reason=error.reason.name)
            return
        self._names_at = now
        for name in self._names:
            self._counts.of(name)
        known = set(self._names)
        self._others = {name: numbers for name, numbers in self._others.items() if name in known}

    def _never_looked_at(self) -> list[str]:
        """Of the others."""
        own = self._counts.own
        for name in own:
            self._others.pop(name, None)
        return [name for name in self._names or () if name not in own and name not in self._others]
