"""What waiting costs, and how soon it ends: run with `make bench`. Prints a table; judges nothing.

Every figure is the median of several runs on this machine, which others may be using, too: compare rows of one run
with each other, not with another day's.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
import psutil
import redis
from google.protobuf.duration_pb2 import Duration

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

if TYPE_CHECKING:
    from headway.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

Stub: TypeAlias = "QueueServiceAsyncStub"


def span(value: timedelta) -> Duration:
    """As the schema has it."""
    duration = Duration()
    duration.FromTimedelta(value)
    return duration


RUNS = 3
ROUNDS = 200
WAITERS = 1_000
IDLE_S = 10.0
PREFIX = "__bench__"
LONG = span(timedelta(minutes=10))


@dataclass(frozen=True)
class Bench:
    """Two services on one store."""

    store: StoreServer
    raw: redis.Redis
    services: tuple[ServiceProcess, ServiceProcess]
    stubs: tuple[Stub, Stub]


def percentile(values: list[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


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


async def _until_leased_again(bench: Bench, queue: str, due_at: Sequence[float]) -> list[float]:
    late = []
    for due in due_at:
        answer = await bench.stubs[1].Get(pb.GetRequest(queue=queue, wait=LONG))
        late.append(time.time() * 1000 - due)
        await bench.stubs[1].Ack(pb.AckRequest(queue=queue, leases=[answer.deliveries[0].lease]))
    return late


async def falling_due(bench: Bench) -> list[float]:
    """Milliseconds from due to delivered, on a queue that nobody touches."""
    queue = "due"
    await bench.stubs[0].Create(pb.CreateRequest(queue=queue))
    messages = [Message(payload=b"x", delay=span(timedelta(milliseconds=200 + 10 * n))) for n in range(ROUNDS)]
    began = time.time() * 1000
    await bench.stubs[0].Put(pb.PutRequest(queue=queue, messages=messages))
    return await _until_leased_again(bench, queue, [began + 200 + 10 * n for n in range(ROUNDS)])


async def lapsing(bench: Bench) -> list[float]:
    """Milliseconds from the deadline of a lease to its redelivery, on a queue that nobody touches."""
    queue = "lapse"
    stub = bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x")] * 50))
    deadlines = []
    for n in range(50):
        answer = await stub.Get(pb.GetRequest(queue=queue, lease=span(timedelta(milliseconds=500 + 20 * n))))
        deadlines.append(answer.deliveries[0].lease_expires_at.ToMilliseconds())
    return await _until_leased_again(bench, queue, deadlines)


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
    await asyncio.sleep(2)
    process = psutil.Process(bench.services[0].pid)
    before, commands = process.cpu_times(), bench.raw.info("stats")["total_commands_processed"]
    began = time.perf_counter()
    await asyncio.sleep(IDLE_S)
    took = time.perf_counter() - began
    after = process.cpu_times()
    share = (after.user + after.system - before.user - before.system) / took * 100
    rate = (bench.raw.info("stats")["total_commands_processed"] - commands) / took
    connections = bench.raw.info("clients")["connected_clients"] - 1
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return share, rate, connections


async def measure(bench: Bench) -> None:
    """Runs everything and prints the table."""
    print(f"{'milliseconds, median of ' + str(RUNS) + ' runs':62} {'p50':>8} {'p99':>8}")
    for measurement in (put_elsewhere, foreign_put, falling_due, lapsing):
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
    """Starts the store and two services, measures, stops them."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        store = StoreServer("valkey", Path(folder), durable=True)
        store.start()
        services = []
        try:
            for n in range(2):
                (Path(folder) / str(n)).mkdir()
                env = {"HEADWAY_REDIS_URL": store.url, "PRESSURE_PREFIX": PREFIX, "HEADWAY_LOG_LEVEL": "warning"}
                services.append(ServiceProcess(Path(folder) / str(n), env=env).start())
            async with (
                grpc.aio.insecure_channel(services[0].address) as first,
                grpc.aio.insecure_channel(services[1].address) as second,
            ):
                stubs = (QueueServiceStub(first), QueueServiceStub(second))
                await measure(Bench(store, store.client(), (services[0], services[1]), stubs))
        finally:
            for service in services:
                service.stop()
            store.stop()


if __name__ == "__main__":
    asyncio.run(main())
