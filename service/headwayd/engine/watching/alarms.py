"""Who is to be looked at when a number (time, departures, a ticket) gets so far: a heap that forgets cheaply."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

Who = TypeVar("Who")

_SLACK = 64  # stale entries kept before it is worth sorting them out


class Alarms(Generic[Who]):
    """At most one alarm for each. O(log n) each; nobody else is touched."""

    def __init__(self) -> None:
        self._at: dict[Who, float] = {}
        self._heap: list[tuple[float, int, Who]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Who]:
        return iter(self._at)

    def at(self, who: Who) -> float | None:
        """When its alarm comes; None if it has none."""
        return self._at.get(who)

    def set(self, who: Who, at: float) -> None:
        """In place of the alarm before."""
        if self._at.get(who) == at:
            return
        self._at[who] = at
        heapq.heappush(self._heap, (at, next(self._numbers), who))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def drop(self, who: Who) -> None:
        """No alarm any more."""
        self._at.pop(who, None)
        if not self._at:
            self._heap.clear()

    def clear(self) -> None:
        """No alarms at all."""
        self._at.clear()
        self._heap.clear()

    def first(self) -> float | None:
        """When the first comes."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, until: float) -> list[Who]:
        """Those whose alarm has come; they have none any more."""
        came: list[Who] = []
        while self._heap and self._heap[0][0] <= until:
            at, _, who = heapq.heappop(self._heap)
            if self._at.get(who) == at:
                del self._at[who]
                came.append(who)
        return came
