"""How good the estimates of waits are, on simulated traces beside the formulas of others, and what they cost: run with
`make bench-eta`. Prints a table, and says where a figure misses its target.

Everything but the cost comes out the same on every run: the traces are seeded, and time in them is made up. `--tuning`
plays the seeds that the estimator's constants were chosen on instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from eta.measure import NAMES, TEST_SEEDS, TUNING_SEEDS, WATCHED_EVERY, Score, score, together
from eta.simulation import Simulation
from eta.traces import CHANGING, JOBS, STEADY, steady
from headwayd.engine.eta import WaitEstimator

GAIN_TARGET, COVERAGE_TARGET, JUMPS_TARGET = 0.30, (0.85, 0.95), 0.02


def row(each: Score) -> str:
    """One trace."""
    errors = [each.error(who) for who in range(len(NAMES))]
    return line(each.name, each.shown, errors, each.coverage(), [each.jump_share(who) for who in range(len(NAMES))])


def summary(title: str, scores: Sequence[Score]) -> str:
    """Several traces, each with the same weight."""
    result = together(scores)
    shown = sum(each.shown for each in scores)
    return line(title, shown, result.errors, result.coverage, result.jump_shares)


def line(name: str, shown: int, errors: Sequence[float], coverage: float, jumps: Sequence[float]) -> str:
    """One line of the table."""
    gain = 1 - errors[0] / min(errors[1:])
    parts = [f"{name:10} {shown:7}"]
    parts += [f"{error:8.3f}" for error in errors]
    parts += [f"{100 * gain:7.0f} %", f"{100 * coverage:8.1f} %"]
    parts += [f"{100 * share:7.2f} %" for share in jumps]
    return " ".join(parts)


def cost_us() -> tuple[float, float]:
    """What one look and one estimate take, in microseconds: medians of rounds of some hundred."""
    simulation = Simulation(steady(1, 2_000), watched_every=WATCHED_EVERY)
    looks = [simulation.numbers() for _ in simulation.looks()]
    estimator, per_look, per_estimate = WaitEstimator(), list[float](), list[float]()
    for at in range(0, len(looks) - 200, 200):
        began = time.perf_counter()
        for numbers in looks[at : at + 200]:
            estimator.observe(numbers)
        per_look.append((time.perf_counter() - began) / 200 * 1e6)
        began = time.perf_counter()
        for position in range(1, 1_001):
            estimator.estimate(position)
        per_estimate.append((time.perf_counter() - began) / 1_000 * 1e6)
    return statistics.median(per_look), statistics.median(per_estimate)


def main() -> None:
    """Plays all traces with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuning", action="store_true", help="with the seeds for choosing constants, not the tests'")
    seeds = TUNING_SEEDS if parser.parse_args().tuning else TEST_SEEDS
    print(f"Estimated waits, seeds {', '.join(map(str, seeds))}, {JOBS} jobs each")
    print("the median of |p50 - wait| / wait of each; how many waits were within p90; upward jumps > 20 % of each")
    heads = [f"{name:>8}" for name in NAMES]
    print(f"{'trace':10} {'shown':>7} {' '.join(heads)} {'smaller':>9} {'p90 true':>10}   {'  '.join(heads)}")
    scores = []
    for title, traces in (("- steady", STEADY), ("- changing", CHANGING)):
        part = []
        for make in traces:
            part.append(score(make, seeds, JOBS))
            print(row(part[-1]), flush=True)
        print(summary(title, part))
        scores += part
    print(summary("together", scores))
    without = [together([other for other in scores if other is not each]).gain for each in scores]
    print(
        f"without one of the traces, whichever: errors {100 * min(without):.0f} to {100 * max(without):.0f} % smaller"
    )
    all_of_them = together(scores)
    low, high = COVERAGE_TARGET
    for is_met, target in (
        (all_of_them.gain >= GAIN_TARGET, f"errors {100 * GAIN_TARGET:.0f} % smaller than each rival's"),
        (low <= all_of_them.coverage <= high, f"p90 true in {100 * low:.0f} to {100 * high:.0f} %"),
        (all_of_them.jump_shares[0] < JUMPS_TARGET, f"jumps in less than {100 * JUMPS_TARGET:.0f} %"),
    ):
        print(f"{'meets' if is_met else 'MISSES'} {target}")
    look_us, estimate_us = cost_us()
    print(f"a look costs {look_us:.0f} µs, an estimate {estimate_us:.1f} µs")


if __name__ == "__main__":
    main()
