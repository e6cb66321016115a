"""The leases that this process gave out and has not seen end: what their Work spans will need."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

# A lapse is told so long after the lease's end: by then a late settle that came in time has been answered.
_LATE_MS = 2_000


@dataclass(slots=True)
class Work:
    """A message with a worker. `parent` is where its spans belong, `job` the context that the message carries, if that
    is somewhere else."""

    queue: str
    message_id: str
    attempt: int
    ticket: int
    leased_at_ns: int
    expires_at_ms: int
    parent: SpanContext
    job: SpanContext | None
    extended_count: int = 0


class Works:
    """At most `most`: the oldest are forgotten, and end unseen by nobody's span."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._works: OrderedDict[str, Work] = OrderedDict()  # by lease
        self._ends: list[tuple[int, str]] = []  # a heap; an entry that is not the lease's end any more is passed over

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, lease: str) -> bool:
        return lease in self._works

    def add(self, lease: str, work: Work) -> None:
        """A lease was given."""
        self._works[lease] = work
        heapq.heappush(self._ends, (work.expires_at_ms, lease))
        if len(self._works) > self._most:
            self._works.popitem(last=False)
        if len(self._ends) > 2 * self._most:
            self._ends = [(work.expires_at_ms, lease) for lease, work in self._works.items()]
            heapq.heapify(self._ends)

    def take(self, lease: str) -> Work | None:
        """The lease has ended; None if it is not known here."""
        return self._works.pop(lease, None)

    def extend(self, lease: str, expires_at_ms: int | None) -> None:
        """The lease runs until then."""
        work = self._works.get(lease)
        if work is None:
            return
        work.extended_count += 1
        if expires_at_ms is not None:
            work.expires_at_ms = expires_at_ms
            heapq.heappush(self._ends, (expires_at_ms, lease))

    def overdue(self, now_ms: int) -> Iterator[Work]:
        """Takes those whose time has been over for a while."""
        while self._ends and self._ends[0][0] + _LATE_MS <= now_ms:
            ends_ms, lease = heapq.heappop(self._ends)
            work = self._works.get(lease)
            if work is not None and work.expires_at_ms <= ends_ms:
                del self._works[lease]
                yield work

    def rest(self) -> Iterator[Work]:
        """Takes all."""
        while self._works:
            yield self._works.popitem(last=False)[1]
