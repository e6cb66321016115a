"""What a call is told that nobody can begin in time, and when its caller shall come again.

A refusal costs the process more than half of what a call costs that is done (docs/measurements.md). Callers who do as
they are told come back after the delay. Were it the same for all they would come back together, find the line full, and
leave the process idle until the next time; so they are told times that are far apart. And the more are refused, the
later they come: until they are no more than so many a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import TYPE_CHECKING

from headwayd.domain.errors import Overloaded, Reason
from headwayd.rpc.core.known import Refused
from headwayd.rpc.status import STATUS_CODES, Refusal

if TYPE_CHECKING:
    from headwayd.engine.counting.counts import Counts
    from headwayd.rpc.edge import Gate

OVERLOADED = STATUS_CODES[Reason.OVERLOADED].name

# So many refusals a second take less than a tenth of a core.
BEARABLE_PER_S = 400
SHORTEST_S = 1.0  # what protocol.md promises
# The longest delay at first, and ever: a process that has got room again must not stand idle for longer.
FIRST_S, LONGEST_S = 3.0, 10.0
_SPAN_S = 1.0
_TWICE, _HALF = 2.0, 0.5
# So many answers are made beforehand. The golden section spreads them evenly, however few of them are given.
_ANSWERS = 34
_GOLDEN = (sqrt(5) - 1) / 2


class RetryDelay:
    """How late callers come again at most, in seconds, from the refusals of the last second. `clock` is monotonic, in
    s."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._count = 0
        self.seconds = FIRST_S

    def note(self) -> bool:
        """One more call is refused. Whether the delay may have changed with it."""
        now = self._clock()
        spans = int((now - self._began) / _SPAN_S)
        if spans:
            # By the root only: who was told of a change comes back later, and until then it must not be made again.
            change = min(max(sqrt(self._count / BEARABLE_PER_S), _HALF), _TWICE)
            change *= _HALF ** (spans - 1)  # in those after the first nobody was refused
            self.seconds = min(max(self.seconds * change, FIRST_S), LONGEST_S)
            self._began, self._count = now, 0
        self._count += 1
        return spans > 0


class Refusing:
    """What refused calls are told. The answers are made once a second and not for each call: to refuse must cost
    little, or refusing is all that is done."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._delay = RetryDelay(clock=clock)
        self._turn = -1
        self._answers = self._made()

    def _made(self) -> tuple[Refusal, ...]:
        text = "more calls come than the service can do"
        more_s = self._delay.seconds - SHORTEST_S
        delays_ms = (round((SHORTEST_S + more_s * (turn * _GOLDEN % 1)) * 1_000) for turn in range(_ANSWERS))
        return tuple(Refusal(Overloaded(text, retry_after_ms=delay_ms)) for delay_ms in delays_ms)

    def next(self) -> Refusal:
        """What one more call is told."""
        if self._delay.note():
            self._answers = self._made()
        self._turn = (self._turn + 1) % len(self._answers)
        return self._answers[self._turn]


def refusals(paths: Iterable[str], *, gate: Gate, counts: Counts | None) -> Mapping[str, Callable[[], Refused]]:
    """For each of these calls what refuses one of them, before its request is read, and counts that."""

    def of(path: str) -> Callable[[], Refused]:
        method = path.rpartition("/")[2]

        def refuse() -> Refused:
            if counts is not None:
                counts.note_call(method, OVERLOADED)
            return gate.next_refusal().unread

        return refuse

    return {path: of(path) for path in paths}
