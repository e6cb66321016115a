"""What the Python client puts and works through: its streams beside its calls. Part of `make bench`. Prints a table;
judges nothing.

One client in one process, one service with its embedded store (append-only file, fsync once a second), on loopback.
Messages have 256 bytes. Every run has a queue of its own and counts what the service says it has, too; the rows take
turns, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import headway
from bench.tables import no_arguments
from harness import ServiceProcess

RUNS = 5
MESSAGES = 20_000
SINGLE = 500  # messages of the rows in which each waits for a call of its own
BATCH = 100
SLOTS = 100
PAYLOAD = b"x" * 256

Measured = Callable[[headway.Queue, int], Awaitable[None]]


async def put_soon(queue: headway.Queue, count: int) -> None:
    """producer.put_soon, one task"""
    async with queue.producer() as producer:
        answers = [await producer.put_soon(PAYLOAD) for _ in range(count)]
    await asyncio.gather(*answers)


async def put_soon_without_ids(queue: headway.Queue, count: int) -> None:
    """producer.put_soon, one task, no ids"""
    async with queue.producer(makes_ids=False) as producer:
        answers = [await producer.put_soon(PAYLOAD) for _ in range(count)]
    await asyncio.gather(*answers)


async def put_by_tasks(queue: headway.Queue, count: int) -> None:
    """producer.put, 500 tasks"""
    async with queue.producer() as producer, asyncio.TaskGroup() as group:

        async def some() -> None:
            for _ in range(count // 500):
                await producer.put(PAYLOAD)

        for _ in range(500):
            group.create_task(some())


async def put_batches(queue: headway.Queue, count: int) -> None:
    """Put, batches of 100, no ids"""
    for _ in range(count // BATCH):
        await queue.put_many([PAYLOAD] * BATCH)


async def put_many(queue: headway.Queue, count: int) -> None:
    """put_many, all at once, no ids"""
    await queue.put_many([PAYLOAD] * count)


async def put_each(queue: headway.Queue, count: int) -> None:
    """Put, one message each, one task"""
    for _ in range(count):
        await queue.put(PAYLOAD)


async def _nothing(lease: headway.Lease) -> None:
    """A handler that costs nothing."""


async def run_by_stream(queue: headway.Queue, count: int) -> None:
    """run, 100 slots, stream"""
    await queue.run(_nothing, concurrency=SLOTS)


async def run_ahead(queue: headway.Queue, count: int) -> None:
    """run, 100 slots and a prefetch of 400, stream"""
    await queue.run(_nothing, concurrency=SLOTS, prefetch=400)


async def run_alone_ahead(queue: headway.Queue, count: int) -> None:
    """run, 1 slot and a prefetch of 100, stream"""
    await queue.run(_nothing, prefetch=100)


async def get_and_ack(queue: headway.Queue, count: int) -> None:
    """Get of 100, then Ack of 100"""
    while deliveries := (await queue.get(BATCH)).deliveries:
        await queue.ack([each.lease for each in deliveries])
        count -= len(deliveries)
        if not count:
            return


async def run_by_calls(queue: headway.Queue, count: int) -> None:
    """run, 100 slots, calls"""
    await queue.run(_nothing, concurrency=SLOTS, by="calls")


PUTS: Sequence[tuple[Measured, int]] = (
    (put_soon, MESSAGES),
    (put_soon_without_ids, MESSAGES),
    (put_by_tasks, MESSAGES),
    (put_batches, MESSAGES),
    (put_many, MESSAGES),
    (put_each, SINGLE),
)
WORKS: Sequence[tuple[Measured, int]] = (
    (run_by_stream, MESSAGES),
    (run_ahead, MESSAGES),
    (run_alone_ahead, MESSAGES),
    (get_and_ack, MESSAGES),
    (run_by_calls, 10 * SINGLE),
)


async def measure(client: headway.Client, measured: Measured, count: int, number: int) -> tuple[float, float]:
    """Messages per second, and the client's own microseconds of processor for each."""
    queue = client.queue(f"{measured.__name__}-{number}")
    await queue.create()
    is_put = any(measured is each for each, _ in PUTS)
    if not is_put:
        await queue.put_many([PAYLOAD] * count)
        await queue.close()
    began, used = time.perf_counter(), time.process_time()
    await measured(queue, count)
    took, used = time.perf_counter() - began, time.process_time() - used
    counts = (await queue.describe()).counts
    assert (counts.length if is_put else counts.acked) == count, counts
    await queue.delete()
    return count / took, used / count * 1e6


async def main() -> None:
    """Runs everything and prints the table."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        service = ServiceProcess(
            Path(folder), env={"HEADWAY_DATA_DIR": f"{folder}/data", "HEADWAY_LOG_LEVEL": "warning"}
        ).start()
        try:
            async with headway.connect(service.address) as client:
                for title, rows in (("put", PUTS), ("worked and acked", WORKS)):
                    found: dict[Measured, list[tuple[float, float]]] = {each: [] for each, _ in rows}
                    for number in range(RUNS):
                        for each, count in rows:
                            found[each].append(await measure(client, each, count, number))
                    heading = f"{title}, median of {RUNS} runs"
                    print(f"\n{heading:56} {'messages/s':>11} {'from - to':>17} {'client µs':>9}")
                    for each, runs in found.items():
                        rates = [rate for rate, _ in runs]
                        span = f"{min(rates):,.0f} - {max(rates):,.0f}"
                        cost = statistics.median(us for _, us in runs)
                        print(f"{each.__doc__:56} {statistics.median(rates):11,.0f} {span:>17} {cost:9.1f}", flush=True)
        finally:
            service.stop()


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
