"""A queue's line as this process knows it: seen whole once, and followed from then on by what happened.

Positions are worked out here, so that the store need not be asked for them however many watch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection
from dataclasses import dataclass

from headwayd.domain.places import MOST_TICKETS, Event, Happening, LineNumbers, Shape, ticket_of_order

_FEW = 32  # new gaps: put in one by one; more are sorted in together
_UNMOVED = (Happening.PROGRESS, Happening.REPLACED)


@dataclass(frozen=True, slots=True)
class Glance:
    """One look at the store: what it told, and, by this process's clock, before which instant it cannot have been."""

    numbers: LineNumbers
    at: float

    def is_before(self, other: Glance) -> bool:
        """Whether this look is the older one, of two at the same life of the queue."""
        mine, others = self.numbers, other.numbers
        return (mine.logged, mine.at_ms) < (others.logged, others.at_ms)


class Line:
    """Which tickets wait, in order: those that came back, then head + 1 to tail without the gaps."""

    def __init__(self, glance: Glance, shape: Shape) -> None:
        self.glance = glance
        self._returned = list(shape.returned)  # what they are sorted by
        self._orders = {ticket_of_order(order): order for order in self._returned}
        self._gaps = list(shape.gaps)
        self._new_gaps: list[int] = []

    def position(self, ticket: int) -> int:
        """The rank of a ticket, 0 if it does not wait. O(log n)."""
        numbers = self.glance.numbers
        if ticket > numbers.head:
            before = bisect_left(self._gaps, ticket)
            is_gap = before < len(self._gaps) and self._gaps[before] == ticket
            if is_gap or ticket > numbers.tail:
                return 0
            return len(self._returned) + ticket - numbers.head - before
        order = self._orders.get(ticket)
        return 0 if order is None else bisect_left(self._returned, order) + 1

    @property
    def returned(self) -> Collection[int]:
        """Tickets that came back and wait at the head."""
        return self._orders.keys()

    def apply(self, event: Event) -> None:
        """Something happened; `move` must follow. Events that the line has seen already change nothing in the end."""
        if event.what in _UNMOVED or not event.ref.isdigit():
            return
        ticket = int(event.ref)
        order = self._orders.pop(ticket, None)
        if order is not None:
            del self._returned[bisect_left(self._returned, order)]
        if event.what is Happening.BACK:
            self._orders[ticket] = event.order
            insort(self._returned, event.order)
        elif order is None and ticket > self.glance.numbers.head:
            self._new_gaps.append(ticket)

    def move(self, glance: Glance) -> bool:
        """All that happened until this look has been applied. False if it does not add up: then foreign clients took
        messages that had come back, and the line must be seen whole again. Or if it has become too large to be kept."""
        self.glance = glance
        numbers = glance.numbers
        del self._gaps[: bisect_right(self._gaps, numbers.head)]
        new = {ticket for ticket in self._new_gaps if ticket > numbers.head}
        self._new_gaps.clear()
        if len(new) > _FEW:
            self._gaps = sorted(new.union(self._gaps))
        else:
            for ticket in new:
                at = bisect_left(self._gaps, ticket)
                if at == len(self._gaps) or self._gaps[at] != ticket:
                    insort(self._gaps, ticket)
        returned, gaps = len(self._returned), len(self._gaps)
        return returned + gaps <= MOST_TICKETS and returned + numbers.tail - numbers.head - gaps == numbers.length
