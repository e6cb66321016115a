"""Who is to be looked at when a number (time, departures, a ticket) gets so far: a heap that forgets cheaply."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from math import inf
from typing import Any, Generic, TypeVar

Who = TypeVar("Who")

_SLACK = 64  # stale entries kept before it is worth sorting them out
_Entry = list[Any]  # when, a number that no other has, and who: None in a stale one, which so keeps nobody in memory


class Alarms(Generic[Who]):
    """At most one alarm for each. O(log n) each; nobody else is touched."""

    def __init__(self) -> None:
        self._entries: dict[Who, _Entry] = {}
        self._heap: list[_Entry] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Who]:
        return iter(self._entries)

    def at(self, who: Who) -> float | None:
        """When its alarm comes; None if it has none."""
        entry = self._entries.get(who)
        return None if entry is None else entry[0]

    def set(self, who: Who, at: float) -> None:
        """In place of the alarm before."""
        before = self._entries.get(who)
        if before is not None:
            if before[0] == at:
                return
            before[2] = None
        entry = self._entries[who] = [at, next(self._numbers), who]
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)

    def drop(self, who: Who) -> None:
        """No alarm any more."""
        entry = self._entries.pop(who, None)
        if entry is not None:
            entry[2] = None
        if not self._entries:
            self._heap.clear()

    def clear(self) -> None:
        """No alarms at all."""
        self._entries.clear()
        self._heap.clear()

    def first(self) -> float | None:
        """When the first comes."""
        while self._heap and self._heap[0][2] is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, until: float, *, most: float = inf) -> list[Who]:
        """Those whose alarm has come, the first `most` of them; they have none any more."""
        came: list[Who] = []
        while self._heap and self._heap[0][0] <= until and len(came) < most:
            who = heapq.heappop(self._heap)[2]
            if who is not None:
                del self._entries[who]
                came.append(who)
        return came
