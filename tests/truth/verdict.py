"""Whether what watchers were told is what the witness saw."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from truth.witness import State, Witness

TRUE_FOR_S = 1.0  # the promise
AS_OF_S = 0.002  # instants are told in milliseconds
_AROUND_S = 0.05
_TICK_S = 0.01
_THREADS = 4
_KEPT_S = 10.0  # states of the line, for what comes late


@dataclass(frozen=True, slots=True)
class Heard:
    """One position, as one watcher received it. Instants are seconds since 1970."""

    name: bytes
    position: int
    length: int
    as_of: float
    at: float

    def is_true_in(self, state: State) -> bool:
        """Whether it is the rank, and the length, in this state of the line."""
        line = state.line
        return len(line) == self.length and 0 < self.position <= len(line) and line[self.position - 1] == self.name


class Lateness:
    """How late this process comes to what it is to do, by a clock that it should look at every 10 ms. A busy machine is
    no service's fault: what came in time may be heard so much later."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()  # of the last second: when, and by how much

    async def run(self) -> None:
        """Until cancelled."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            self._late.append((now, now - due))
            while self._late[0][0] < now - TRUE_FOR_S:
                self._late.popleft()
            due = now + _TICK_S
            await asyncio.sleep(_TICK_S)

    @property
    def longest_s(self) -> float:
        """Of the last second."""
        return max((late for _, late in self._late), default=0.0)


@dataclass
class Verdict:
    """Judges what was heard when the witness has seen all of its time. It may be a second old, and older by what this
    process was late, four times: so many threads had to come to it once it was sent, the service's two and ours."""

    witness: Witness
    lateness: Lateness = field(default_factory=Lateness)
    judged: int = 0
    false: list[str] = field(default_factory=list)
    ages_ms: Counter[int] = field(default_factory=Counter)  # how old positions were when they came, in steps of 10 ms
    _heard: deque[tuple[Heard, float]] = field(default_factory=deque)  # and how old it may be

    def hear(self, heard: Heard) -> None:
        """To be judged later."""
        self._heard.append((heard, TRUE_FOR_S + _THREADS * self.lateness.longest_s))

    @property
    def pending(self) -> int:
        """How many are not judged yet."""
        return len(self._heard)

    def judge(self) -> None:
        """All that the witness knows enough for."""
        while self._heard and self._heard[0][0].at < self.witness.seen_until:
            heard, oldest_s = self._heard.popleft()
            self.judged += 1
            self.ages_ms[int((heard.at - heard.as_of) * 100) * 10] += 1
            if not 0 <= heard.at - heard.as_of + AS_OF_S <= oldest_s:
                self.false.append(f"{heard}: {heard.at - heard.as_of:.3f} s old, which may be {oldest_s:.3f}")
            elif not self._was_true(heard):
                self.false.append(f"{heard}: {self._explain(heard)}")
        before = self._heard[0][0].at if self._heard else self.witness.seen_until
        self.witness.forget(before - _KEPT_S)

    def _was_true(self, heard: Heard) -> bool:
        return any(map(heard.is_true_in, self.witness.states(heard.as_of - AS_OF_S, heard.as_of + AS_OF_S)))

    def _explain(self, heard: Heard) -> str:
        late = f"{(heard.at - heard.as_of) * 1000:.0f} ms old"
        within = [state for state in self.witness.states(heard.at - TRUE_FOR_S, heard.at) if heard.is_true_in(state)]
        if within:
            return f"{late}, true at {within[0].since:.4f}, but not as of then"
        around = self.witness.states(heard.as_of - _AROUND_S, heard.as_of + _AROUND_S)
        was = [f"{state.since - heard.as_of:+.4f}: {_rank(heard.name, state)} of {len(state.line)}" for state in around]
        return f"{late}, not true in the second before; from its instant on, in s, it was {', '.join(was)}"


def _rank(name: bytes, state: State) -> int:
    return state.line.index(name) + 1 if name in state.line else 0
