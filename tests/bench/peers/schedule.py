"""How long a benchmark beside other queues takes: what is told before it begins, and what each run may take, so that
all are done in the minutes that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PHASES = 3
LINE_S = 2.0  # about: a server starts and stops
RUN_S = 2.0  # about: drivers start and stop, and what comes late is waited for
LEAST_S = 0.2  # a phase that is shorter tells nothing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """So many lines, each of so many runs behind a warm-up. A phase takes `seconds`, unless there are `minutes` for all
    lines together: then what that leaves for it."""

    lines: int
    runs: int
    seconds: float
    minutes: float | None = None

    def phase_s(self) -> float:
        """What there is for a phase if all takes as long as was measured."""
        if self.minutes is None:
            return self.seconds
        return phase_s(60 * self.minutes / self.lines - LINE_S - RUN_S, self.runs, RUN_S)

    def longest_s(self) -> float:
        """All lines. Those that put as many messages as are asked for in less than their time are done before."""
        return self.lines * (LINE_S + RUN_S + self.runs * (RUN_S + PHASES * self.phase_s()))

    def told(self) -> str:
        """For people, before it begins."""
        longest = self.longest_s() / 60
        phase = f"{self.phase_s():.1f} s for each phase"
        return f"{self.lines} lines of {self.runs} runs, {phase} or less: about {longest:,.0f} minutes or less"


def phase_s(left_s: float, runs: int, aside_s: float) -> float:
    """What is left for each phase of that many runs, if a run costs so much beside its phases."""
    return max(LEAST_S, (left_s / runs - aside_s) / PHASES)


class Schedule:
    """Follows a plan run by run: what one run does not need, those behind it have."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.plan, self._clock = plan, clock
        self._lines_to_begin = plan.lines
        self._runs_left = plan.lines * plan.runs
        self._ends_at = clock() + 60 * (plan.minutes or 0)

    def begin_line(self) -> None:
        """One more is about to start its server, and to warm up."""
        self._lines_to_begin -= 1

    def leave_out(self, runs: int) -> None:
        """So many runs of a line will not be."""
        self._runs_left -= runs

    def begin_run(self, aside_s: float) -> float:
        """What each phase of the next run may take, if the run costs so much beside its phases."""
        if self.plan.minutes is None:
            return self.plan.seconds
        left_s = self._ends_at - self._clock() - self._lines_to_begin * (LINE_S + RUN_S)
        runs, self._runs_left = self._runs_left, self._runs_left - 1
        return phase_s(left_s, max(1, runs), aside_s)
