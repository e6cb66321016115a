"""From the instant of a Put to its receipt by one who waits on another service: part of `make bench`. Prints tables;
judges nothing.

Open loop, by calls and by streams, from each client that is there (latency_drivers.py): on few cores a client takes
from the services what it needs itself, so its figures tell of it, too; one of them is bare for that reason. Gets are
asked for one message each, and for up to ten, as a consumer does who can take more: then one call brings what came
while the last one was under way. Beside them the processor time that each process took for a message, which says what
stands in the way.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.latency_drivers import DRIVERS, PROGRAM, Order, Outcome, call_empty
from bench.peers import places
from bench.rig import Bench, StoreWork, cpu_s, empty_service, percentile, started
from bench.tables import Table, arguments, made_by, spread, write
from headway.v1 import queue_service_pb2 as pb

PEAK_S = 5.0
RATES = (100, 1_000)
SHARE_OF_PEAK = 0.7
ENOUGH = 10_000  # messages for a p99.9: of fewer it is one of the ten that came last
US_PER_S = 1_000_000


@dataclass(frozen=True)
class Way:
    """How messages are put and got."""

    name: str
    title: str
    waiters: int
    most: int = 1
    streams: bool = False

    @property
    def note(self) -> str:
        """Who waits."""
        if self.streams:
            return f"a batch for each; one stream consumes, and holds up to {self.waiters}"
        return f"{self.waiters} Gets wait, each for {'one message' if self.most == 1 else f'up to {self.most}'}"


WAYS = (
    Way("calls", "Put → waiting Get on another service", waiters=16),
    Way("calls for ten", "Put → waiting Get for up to ten messages on another service", waiters=4, most=10),
    Way("streams", "Produce → Consume on another service", waiters=16, streams=True),
)


@dataclass(frozen=True)
class Work:
    """What everybody did so far: processor time of each service and of the store (s), and steps of the store."""

    cpu_s: tuple[float, ...]
    steps: int

    @classmethod
    def of(cls, bench: Bench) -> Work:
        """As the system and the store count it."""
        pids = (*(service.pid for service in bench.services), bench.store.pid)
        return cls(tuple(map(cpu_s, pids)), StoreWork.of(bench.raw).steps)

    def __sub__(self, before: Work) -> Work:
        used = tuple(after - first for after, first in zip(self.cpu_s, before.cpu_s, strict=True))
        return Work(used, self.steps - before.steps)


async def run(bench: Bench, driver: str, order: Order) -> tuple[Outcome, Work]:
    """Does the order on a new queue; what came of it, and what it took."""
    await bench.stubs[0].Create(pb.CreateRequest(queue=order.queue))
    before = Work.of(bench)
    outcome = await asyncio.to_thread(DRIVERS[driver], order)
    return outcome, Work.of(bench) - before


class Report:
    """How late, for each way, and at what price."""

    def __init__(self, runs: int) -> None:
        columns = ["messages/s", "client", "messages", "p50, ms", "p99, ms"]
        columns += ["p99.9 of all, ms", "longest, ms", "trouble"]
        note = (
            f"Open loop, from the intended instant of the Put; {Order.size} B, {{}}. {SHARE_OF_PEAK:.0%} of peak is of"
            f" what {Order.at_once} Puts without an answer brought through in {PEAK_S:.0f} s. Median (least–most) of"
            f" {runs} runs; p99.9 is that of all together, where they have {ENOUGH:,} messages."
        )
        self.late = {way: Table(way.title, columns, note.format(way.note)) for way in WAYS}
        self.price = Table(
            "Processor time for a message",
            ["messages/s", "client", "service of the Put, µs", "of the Get, µs", "store, µs", "client, µs", "steps"],
            "Medians of the runs above; steps are calls of scripts in the store for a message. An empty call is of a"
            " grpc.aio service that gives back what it gets: a message by calls takes two.",
            silent=True,
        )  # shown behind the others, not row by row among them

    def add(self, name: str, driver: str, way: Way, runs: Sequence[tuple[Outcome, Work]]) -> None:
        """What some runs told."""
        lates = [outcome.late_ms for outcome, _ in runs]
        p50, p99 = (spread([percentile(late, share) for late in lates]) for share in (0.5, 0.99))
        of_all = [*itertools.chain.from_iterable(lates)]
        p999 = spread([percentile(of_all, 0.999)]) if len(of_all) >= ENOUGH else ""
        longest = spread([max(late) for late in lates])
        trouble = "; ".join(sorted({outcome.trouble for outcome, _ in runs} - {""})) or "none"
        self.late[way].add(name, driver, f"{len(of_all):,}", p50, p99, p999, longest, trouble)
        seconds = [(*work.cpu_s, outcome.cpu_s) for outcome, work in runs]
        used = [[one * US_PER_S / len(late) for one in each] for each, late in zip(seconds, lates, strict=True)]
        steps = statistics.median(work.steps / len(outcome.late_ms) for outcome, work in runs)
        prices = (f"{statistics.median(each):,.0f}" for each in zip(*used, strict=True))
        self.price.add(f"{name}, {way.name}", driver, *prices, f"{steps:.2f}")

    def add_empty(self, rate: float, *, calls: int, service_s: float, client_s: float) -> None:
        """What calls that do nothing took at this rate."""
        service, client = (f"{seconds * US_PER_S / calls:,.0f}" for seconds in (service_s, client_s))
        self.price.add(f"{rate:,.0f} empty calls", "Python", service, "", "", client, "")

    @property
    def tables(self) -> list[Table]:
        """All."""
        return [*self.late.values(), self.price]


async def measure(bench: Bench, driver: str, way: Way, *, seconds: float, runs: int, report: Report) -> None:
    """The peak, and all rates in turn, so many times."""
    putting, getting = bench.services
    name = f"{way.name.replace(' ', '-')}-{driver}"
    flat_out = Order(
        putting.address,
        getting.address,
        f"{name}-peak",
        0,
        PEAK_S,
        streams=way.streams,
        waiters=way.waiters,
        most=way.most,
    )
    peak = (await run(bench, driver, flat_out))[0].rate
    rates = {f"{rate:,}": float(rate) for rate in RATES}
    rates[f"{SHARE_OF_PEAK * peak:,.0f} ({SHARE_OF_PEAK:.0%} of {peak:,.0f})"] = SHARE_OF_PEAK * peak
    done: dict[str, list[tuple[Outcome, Work]]] = {told: [] for told in rates}
    for n, (told, rate) in itertools.product(range(runs), rates.items()):
        queue = f"{name}-{rate:.0f}-{n}"
        done[told].append(await run(bench, driver, replace(flat_out, queue=queue, rate=rate, seconds=seconds)))
    for told in rates:
        report.add(told, driver, way, done[told])


async def measure_empty(rate: float, *, seconds: float, report: Report) -> None:
    """The price of calls that do nothing."""
    async with empty_service() as (address, pid):
        before = cpu_s(pid)
        order = Order(address, "", "", rate, seconds)
        calls, client_s = await asyncio.to_thread(call_empty, order)
        report.add_empty(rate, calls=calls, service_s=cpu_s(pid) - before, client_s=client_s)


def drivers() -> list[str]:
    """Those that are there."""
    try:
        places.program(PROGRAM)
    except places.Missing as missing:
        print(f"left out: {missing}")
        return ["Python"]
    return list(DRIVERS)


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each run at each rate")
    parser.add_argument("--runs", type=int, default=3, help="at each rate")
    parser.add_argument("--clients", nargs="+", choices=list(DRIVERS), default=None, help="these, not all there are")
    options = parser.parse_args()
    report = Report(options.runs)
    async with started(2) as bench:
        for way, driver in itertools.product(WAYS, options.clients or drivers()):
            await measure(bench, driver, way, seconds=options.seconds, runs=options.runs, report=report)
    for rate in RATES:
        await measure_empty(rate, seconds=options.seconds, report=report)
    print(f"\n{report.price.markdown()}")
    write(options.markdown, "bench-latency", made_by("bench", "bench.latency"), report.tables)


if __name__ == "__main__":
    asyncio.run(main())
