"""Whether what watchers were told is what the witness saw."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from harness import ServiceProcess
from harness.scraping import scrape
from truth.witness import State, Witness

TRUE_FOR_S = 1.0  # the promise
AS_OF_S = 0.002  # instants are told in milliseconds
_AROUND_S = 0.05
OLD_SHARE = 0.05  # of positions may be heard later than that, see Verdict
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


@dataclass
class Verdict:
    """Judges what was heard when the witness has seen all of its time.

    What was sent within the second may be older when it is heard: on a busy machine who listens here falls behind, and
    has still to read what came before. So of those that are older some are forgiven, and none that was never true.
    `sent_late` asks the service how old they were when it sent them: none may be older than a second."""

    witness: Witness
    judged: int = 0
    false: list[str] = field(default_factory=list)
    ages_ms: Counter[int] = field(default_factory=Counter)  # how old positions were when they came, in steps of 10 ms
    old_count: int = 0  # heard more than a second after their instants
    _heard: deque[Heard] = field(default_factory=deque)

    def hear(self, heard: Heard) -> None:
        """To be judged later."""
        self._heard.append(heard)

    @property
    def pending(self) -> int:
        """How many are not judged yet."""
        return len(self._heard)

    def judge(self) -> None:
        """All that the witness knows enough for."""
        while self._heard and self._heard[0].at < self.witness.seen_until:
            heard = self._heard.popleft()
            self.judged += 1
            self.ages_ms[int((heard.at - heard.as_of) * 100) * 10] += 1
            self.old_count += heard.at - heard.as_of > TRUE_FOR_S
            if not self._was_true(heard):
                self.false.append(f"{heard}: {self._explain(heard)}")
        before = self._heard[0].at if self._heard else self.witness.seen_until
        self.witness.forget(before - _KEPT_S)

    @property
    def are_old(self) -> bool:
        """More of them than are forgiven."""
        return self.old_count > OLD_SHARE * self.judged

    def _was_true(self, heard: Heard) -> bool:
        if heard.as_of > heard.at + AS_OF_S:
            return False
        return any(map(heard.is_true_in, self.witness.states(heard.as_of - AS_OF_S, heard.as_of + AS_OF_S)))

    def _explain(self, heard: Heard) -> str:
        late = f"{(heard.at - heard.as_of) * 1000:.0f} ms old"
        within = [state for state in self.witness.states(heard.at - TRUE_FOR_S, heard.at) if heard.is_true_in(state)]
        if within:
            return f"{late}, true at {within[0].since:.4f}, but not as of then"
        around = self.witness.states(heard.as_of - _AROUND_S, heard.as_of + _AROUND_S)
        was = [f"{state.since - heard.as_of:+.4f}: {_rank(heard.name, state)} of {len(state.line)}" for state in around]
        return f"{late}, not true in the second before; from its instant on, in s, it was {', '.join(was)}"


async def sent_late(service: ServiceProcess) -> float:
    """How many places a service, which has an HTTP port, told more than a second after their instants."""
    told = await scrape(service)
    count = told.value("position_lag_seconds_count")
    assert count, "it has told of none"
    return count - told.value("position_lag_seconds_bucket", le="1.0")


def _rank(name: bytes, state: State) -> int:
    return state.line.index(name) + 1 if name in state.line else 0
