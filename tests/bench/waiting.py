"""What waiting costs, and how soon it ends: run with `make bench`. Prints a table; judges nothing.

Every figure is the median of several runs on this machine, which others may be using, too: compare rows of one run
with each other, not with another day's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial

from bench.rig import LONG, PREFIX, Bench, Stub, cost_of, percentile, started
from bench.tables import no_arguments
from harness import eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

RUNS = 3
ROUNDS = 200
WAITERS = 1_000
IDLE_S = 20.0
SETTLED_S = 75.0  # then safety checks and rare looks are made at the pace at which they go on


async def _waits(stub: Stub, queue: str) -> bool:
    answer = await stub.Describe(pb.DescribeRequest(queue=queue))
    return answer.queue.counts.consumers_waiting > 0


async def _latencies(bench: Bench, queue: str, put: Callable[[], Awaitable[None]]) -> list[float]:
    """Milliseconds from the put to the answer of a Get that was waiting on the second service."""
    getter = bench.stubs[1]
    found = []
    for _ in range(ROUNDS):
        waiting = asyncio.ensure_future(getter.Get(pb.GetRequest(queue=queue, wait=LONG)))
        await eventually(lambda: _waits(getter, queue))
        began = time.perf_counter()
        await put()
        answer = await waiting
        found.append((time.perf_counter() - began) * 1000)
        await getter.Ack(pb.AckRequest(queue=queue, leases=[answer.deliveries[0].lease]))
    return found


async def put_elsewhere(bench: Bench) -> list[float]:
    """Put on one service, Get waiting on another."""
    queue = "elsewhere"
    await bench.stubs[0].Create(pb.CreateRequest(queue=queue))

    async def put() -> None:
        await bench.stubs[0].Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x")]))

    return await _latencies(bench, queue, put)


async def foreign_put(bench: Bench) -> list[float]:
    """A foreign client's put, step by step, Get waiting."""
    queue = "foreign"
    await bench.stubs[0].Create(pb.CreateRequest(queue=queue))
    base = f"{PREFIX}:{queue}"

    def steps() -> None:
        bench.raw.brpop([f"{base}:producer_free"])
        bench.raw.set(f"{base}:producer", "bench")
        bench.raw.lpush(base, b"x")
        bench.raw.incr(f"{base}:stats:produced_messages")
        bench.raw.incrby(f"{base}:stats:produced_bytes", 1)
        bench.raw.lpush(f"{base}:producer_free", 0)

    async def put() -> None:
        await asyncio.to_thread(steps)

    return await _latencies(bench, queue, put)


async def idle(bench: Bench, queues: int) -> tuple[float, float, int]:
    """Share of a core (%), Redis commands per second, and Redis connections, of WAITERS Gets that wait and get
    nothing."""
    names = [f"idle-{queues}-{n}" for n in range(queues)]
    stub = bench.stubs[0]
    for name in names:
        await stub.Create(pb.CreateRequest(queue=name))
    waiting = [
        asyncio.ensure_future(stub.Get(pb.GetRequest(queue=names[n % queues], wait=LONG))) for n in range(WAITERS)
    ]
    for name in (names[0], names[-1]):
        await eventually(partial(_waits, stub, name), within=30)
    await asyncio.sleep(SETTLED_S)
    cost = await cost_of(bench, IDLE_S)
    connections = bench.raw.info("clients")["connected_clients"] - 1
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return cost.services[0], cost.commands, connections


async def measure(bench: Bench) -> None:
    """Runs everything and prints the table."""
    print(f"{'milliseconds, median of ' + str(RUNS) + ' runs':62} {'p50':>8} {'p99':>8}")
    for measurement in (put_elsewhere, foreign_put):
        runs = [await measurement(bench) for _ in range(RUNS)]
        p50 = statistics.median(percentile(run, 0.50) for run in runs)
        p99 = statistics.median(percentile(run, 0.99) for run in runs)
        print(f"{(measurement.__doc__ or '').rstrip('.'):62.62} {p50:8.2f} {p99:8.2f}")
    print()
    print(f"{str(WAITERS) + ' waiting Gets':62} {'% core':>8} {'cmd/s':>8} {'conns':>8}")
    for queues in (1, WAITERS):
        share, rate, connections = await idle(bench, queues)
        print(f"{'on ' + str(queues) + ' idle queue(s)':62} {share:8.2f} {rate:8.1f} {connections:8}")


async def main() -> None:
    """Measures, on a store and services of its own."""
    async with started() as bench:
        await measure(bench)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
