"""The traces: made-up days of a queue. Each is made anew from a seed, and is as long as the number of its jobs says."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence

from eta.simulation import Job, Trace, Worker

JOBS = 6_000
MEAN_S = 2.0  # of the work of one job, if nothing else is said
FOREVER = float("inf")


def steady(seed: int, jobs: int = JOBS) -> Trace:
    """Nothing ever changes: Poisson arrivals, exponential work, four workers."""
    chance = seeded("steady", seed)
    puts = arrivals(chance, lambda _at: 1.95, 1.95, jobs)
    return Trace("steady", [Job(at, chance.expovariate(1 / MEAN_S)) for at in puts], crew(4))


def shifting(seed: int, jobs: int = JOBS) -> Trace:
    """Poisson arrivals and four workers, but what is to be done changes every few minutes."""
    chance = seeded("shifting", seed)
    mean_at = wandering(chance, (60.0, 300.0), lambda _last: lognormal(chance, MEAN_S, 0.6), jobs / 1.8)
    puts = arrivals(chance, lambda _at: 1.8, 1.8, jobs)
    return Trace("shifting", [Job(at, chance.expovariate(1 / mean_at(at))) for at in puts], crew(4))


def surges(seed: int, jobs: int = JOBS) -> Trace:
    """Arrivals come in surges; the work is always of the same kind."""
    chance = seeded("surges", seed)
    puts = arrivals(chance, lambda at: 4.0 if at % 600 < 150 else 0.9, 4.0, jobs)
    return Trace("surges", [Job(at, chance.expovariate(1 / MEAN_S)) for at in puts], crew(4))


def batches(seed: int, jobs: int = JOBS) -> Trace:
    """Bursts of jobs that are alike, each burst unlike the others, with pauses between."""
    chance = seeded("batches", seed)
    made, at = list[Job](), 0.0
    while len(made) < jobs:
        count, mean = chance.randint(40, 400), lognormal(chance, MEAN_S, 0.8)
        made += [Job(at + chance.uniform(0, 20), lognormal(chance, mean, 0.5)) for _ in range(count)]
        at += count * mean / 4 * chance.uniform(0.8, 1.8)
    return Trace("batches", sorted(made, key=lambda job: job.put_at), crew(4))


def joining(seed: int, jobs: int = JOBS) -> Trace:
    """Workers join and leave one by one, some of them crash; they are not equally fast."""
    chance = seeded("joining", seed)
    puts = arrivals(chance, lambda _at: 2.1, 2.1, jobs)
    workers, at = crew(1), 0.0
    while at < puts[-1]:
        at += chance.expovariate(1 / 60)
        stays_s = chance.expovariate(1 / 350)
        workers.append(Worker(at, at + stays_s, chance.uniform(0.7, 1.3), is_crashing=chance.random() < 0.3))
    return Trace("joining", [Job(at, chance.expovariate(1 / MEAN_S)) for at in puts], workers)


def replaced(seed: int, jobs: int = JOBS) -> Trace:
    """Every few minutes the workers are replaced by others: more or fewer, faster or slower."""
    chance = seeded("replaced", seed)
    puts = arrivals(chance, lambda _at: 2.3, 2.3, jobs)
    workers, at = list[Worker](), 0.0
    while at < puts[-1] * 2:
        until = at + chance.uniform(120.0, 400.0)
        speed = lognormal(chance, 1.0, 0.5)
        workers += [Worker(at, until, speed) for _ in range(chance.randint(3, 9))]
        at = until
    workers.append(Worker(at, FOREVER))
    return Trace("replaced", [Job(at, chance.expovariate(1 / MEAN_S)) for at in puts], workers)


def heavy(seed: int, jobs: int = JOBS) -> Trace:
    """Heavy-tailed work: most jobs are short, a few take very long."""
    chance = seeded("heavy", seed)
    puts = arrivals(chance, lambda _at: 3.7, 3.7, jobs)
    return Trace("heavy", [Job(at, lognormal(chance, MEAN_S, 1.5)) for at in puts], crew(8))


def spells(seed: int, jobs: int = JOBS) -> Trace:
    """Heavy-tailed work, and at times what it needs is slow for a while: then every job takes four times as long."""
    chance = seeded("spells", seed)
    starts, factors = [0.0], [1.0]
    while starts[-1] < jobs:
        starts.append(starts[-1] + (chance.expovariate(1 / 400) if factors[-1] == 1.0 else chance.uniform(40, 160)))
        factors.append(5.0 - factors[-1])
    puts = arrivals(chance, lambda _at: 2.4, 2.4, jobs)
    sizes = [Job(at, lognormal(chance, MEAN_S, 1.2)) for at in puts]
    return Trace("spells", sizes, crew(8), slowness=stepwise(starts, factors))


def even(seed: int, jobs: int = JOBS) -> Trace:
    """Every job takes nearly the same time."""
    chance = seeded("even", seed)
    puts = arrivals(chance, lambda at: 2.5 if at % 400 < 200 else 1.3, 2.5, jobs)
    return Trace("even", [Job(at, lognormal(chance, MEAN_S, 0.2)) for at in puts], crew(4))


def fast(seed: int, jobs: int = JOBS) -> Trace:
    """Many departures between two looks, and work whose length wanders."""
    chance = seeded("fast", seed)

    def next_mean(last: float) -> float:
        return min(max(last * math.exp(chance.gauss(0, 0.5)), 0.015), 0.12)

    mean_at = wandering(chance, (1.0, 5.0), next_mean, jobs / 320, first=0.04)
    puts = arrivals(chance, lambda at: 560.0 if at % 10 < 4 else 320.0, 560.0, 3 * jobs)
    return Trace("fast", [Job(at, lognormal(chance, mean_at(at), 0.6)) for at in puts], crew(20))


def failing(seed: int, jobs: int = JOBS) -> Trace:
    """Every fourth delivery fails and comes back to the head."""
    chance = seeded("failing", seed)
    puts = arrivals(chance, lambda _at: 1.45, 1.45, jobs)
    made = []
    for at in puts:
        failures = 0
        while chance.random() < 0.25:
            failures += 1
        made.append(Job(at, chance.expovariate(1 / MEAN_S), failures))
    return Trace("failing", made, crew(4))


# Where the mean of all history stays true, and where what a message or a worker takes changes.
STEADY: Sequence[Callable[..., Trace]] = (steady, surges, joining, heavy, even, failing)
CHANGING: Sequence[Callable[..., Trace]] = (shifting, batches, replaced, spells, fast)
TRACES = (*STEADY, *CHANGING)


def seeded(name: str, seed: int) -> random.Random:
    """Chance, the same on every run."""
    return random.Random(f"{name}/{seed}")


def crew(count: int) -> list[Worker]:
    """Workers who are there all the time."""
    return [Worker(joins_at=0.0) for _ in range(count)]


def lognormal(chance: random.Random, mean: float, deviation: float) -> float:
    """`deviation` is that of the logarithm."""
    return mean * math.exp(chance.gauss(0.0, deviation) - deviation * deviation / 2)


def arrivals(chance: random.Random, rate: Callable[[float], float], most: float, count: int) -> list[float]:
    """Instants of a Poisson process whose rate changes with time and is never above `most`."""
    at, instants = 0.0, list[float]()
    while len(instants) < count:
        at += chance.expovariate(most)
        if chance.random() * most < rate(at):
            instants.append(at)
    return instants


def stepwise(starts: Sequence[float], values: Sequence[float]) -> Callable[[float], float]:
    """The value whose start was the last."""
    return lambda at: values[max(bisect.bisect_right(starts, at) - 1, 0)]


def wandering(
    chance: random.Random,
    stays_s: tuple[float, float],
    following: Callable[[float], float],
    until: float,
    first: float = MEAN_S,
) -> Callable[[float], float]:
    """A value that changes at random instants, and what follows on the last one."""
    starts, values = [0.0], [first]
    while starts[-1] < until * 1.5:
        starts.append(starts[-1] + chance.uniform(*stays_s))
        values.append(following(values[-1]))
    return stepwise(starts, values)
