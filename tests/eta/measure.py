"""How good the estimates are on simulated traces, beside those of the rivals: errors, coverage, upward jumps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from eta.rivals import Gradio, Parq
from eta.simulation import Simulation, Trace
from headwayd.engine.eta import WaitEstimator

TUNING_SEEDS = (1, 2, 3)  # what the constants of the estimator were chosen on
TEST_SEEDS = (101, 102, 103, 104, 105)  # what they never saw
WATCHED_EVERY = 23  # one in so many jobs is watched
JUMP = 1.2  # an estimate that is so many times the one before it jumped
NAMES = ("headway", Gradio.name, Parq.name)


@dataclass(slots=True)
class Score:
    """What came of the estimates shown in one trace, over all seeds. Errors are relative: |p50 - wait| / wait."""

    name: str
    errors: tuple[list[float], ...] = field(default_factory=lambda: tuple([] for _ in NAMES))
    covered: int = 0  # waits not longer than p90
    steps: int = 0  # estimates that had one before them, for the same job
    jumps: list[int] = field(default_factory=lambda: [0 for _ in NAMES])
    unknown: int = 0  # showings at which one of the three had no estimate: they count for none

    @property
    def shown(self) -> int:
        """How many estimates were compared with the wait."""
        return len(self.errors[0])

    def error(self, who: int) -> float:
        """The median error."""
        return statistics.median(self.errors[who])

    def coverage(self) -> float:
        """The share of waits that were not longer than p90."""
        return self.covered / self.shown

    def jump_share(self, who: int) -> float:
        """The share of steps that were jumps upward."""
        return self.jumps[who] / self.steps


@dataclass(frozen=True, slots=True)
class Together:
    """All traces, each with the same weight however many estimates it showed."""

    errors: Sequence[float]  # medians, in the order of NAMES
    coverage: float
    jump_shares: Sequence[float]

    @property
    def gain(self) -> float:
        """By how much the median error is smaller than that of the better rival."""
        return 1 - self.errors[0] / min(self.errors[1:])


def score(make: Callable[..., Trace], seeds: Sequence[int], jobs: int) -> Score:
    """Plays one trace with each seed."""
    total = Score(make.__name__)
    for seed in seeds:
        _play(make(seed, jobs), total)
    return total


def together(scores: Sequence[Score]) -> Together:
    """What the scores say together."""
    count = len(scores)
    return Together(
        errors=[
            _weighted_median((error, 1 / each.shown) for each in scores for error in each.errors[who])
            for who in range(len(NAMES))
        ],
        coverage=sum(each.coverage() for each in scores) / count,
        jump_shares=[sum(each.jump_share(who) for each in scores) / count for who in range(len(NAMES))],
    )


def _play(trace: Trace, total: Score) -> None:
    simulation, estimator, rivals = Simulation(trace, watched_every=WATCHED_EVERY), WaitEstimator(), (Gradio(), Parq())
    told: list[tuple[int, float, float, list[float]]] = []  # job, when, p90, and the p50 of each; in seconds
    for state, showings in simulation.looks():
        estimator.observe(simulation.numbers())
        for showing in showings:
            own = estimator.estimate(showing.position)
            others = [rival.p50(state, trace, showing.position) for rival in rivals]
            if own is None or None in others:
                total.unknown += 1
                continue
            p50s = [own.p50_ms / 1_000, *(p50 for p50 in others if p50 is not None)]
            told.append((showing.number, showing.at, own.p90_ms / 1_000, p50s))
    former: dict[int, list[float]] = {}
    for number, at, p90, p50s in told:
        wait = simulation.leased_at[number] - at
        if wait <= 0:
            continue  # granted at the very instant of the look
        total.covered += wait <= p90
        total.steps += number in former
        for who, p50 in enumerate(p50s):
            total.errors[who].append(abs(p50 - wait) / wait)
            total.jumps[who] += number in former and p50 > JUMP * former[number][who]
        former[number] = p50s


def _weighted_median(weighed: Iterator[tuple[float, float]]) -> float:
    ordered = sorted(weighed)
    half, passed = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    raise ValueError("the median of nothing")
