"""How many messages a stream leases and acks in one step of the store."""

from __future__ import annotations

# A step that takes more than such a part of what it may is long; one that takes less than such a part of that is quick.
_LONG, _QUICK = 1 / 5, 1 / 4
_LEAST = 50  # of fewer the step itself is most of what they cost
_LITTLE = 10  # more after a step that was neither: a store that is far away, and once was slow, is asked for more again


class Stride:
    """At most `most`, as long as steps are quick. Where many streams have the store in turn, and what they ask of it
    takes long, each waits for all others: then each asks for less. Else in the end steps would take longer than they
    may, and fail, and their leases would be given back, and out again. `budget_s` is what a step may take."""

    def __init__(self, *, most: int, budget_s: float) -> None:
        self._most = most
        self._least = min(_LEAST, most)
        self._long_s = budget_s * _LONG
        self.messages = most

    def note(self, took_s: float) -> None:
        """A step took so long, from when it was asked for until it was answered; of one that failed, all it may."""
        if took_s > self._long_s:
            self.messages = max(self.messages // 2, self._least)
        elif took_s < self._long_s * _QUICK:
            self.messages = min(self.messages * 2, self._most)
        else:
            self.messages = min(self.messages + _LITTLE, self._most)
