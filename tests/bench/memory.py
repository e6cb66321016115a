"""What memory messages take: in the store while they wait, and in the service while they pass through. Part of
`make bench`. Prints tables; judges nothing.

The store's own count (INFO memory) without its buffers, before and after; so all that a message brings along is in it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from bench.peers.catalogue import CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.rig import PREFIX, Bench, started
from bench.tables import Table, arguments, made_by, write
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

SIZES = (100, 1_024)
BATCH = 500
PASSING_SIZE = 100
STEPS = 10  # how often the service's memory is looked at, over all that passes
PATIENCE_S = 600.0
STEP_S = 0.05
MB = 1024 * 1024

Fill = Callable[[Bench, str, int, int], Awaitable[None]]


def used(bench: Bench) -> int:
    """Bytes, without what belongs to connections and to the file under way."""
    memory = bench.raw.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"] - memory["mem_aof_buffer"])


async def _put(bench: Bench, queue: str, count: int, make: Callable[[int], Message]) -> None:
    stub = bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    for start in range(0, count, BATCH):
        messages = [make(n) for n in range(start, start + BATCH)]
        answer = await stub.Put(pb.PutRequest(queue=queue, messages=messages))
        assert not any(result.HasField("error") for result in answer.results), answer


async def plain(bench: Bench, queue: str, count: int, size: int) -> None:
    """a plain list"""
    for _ in range(0, count, BATCH):
        bench.raw.lpush(f"{PREFIX}:{queue}", *[b"x" * size] * BATCH)


async def bare(bench: Bench, queue: str, count: int, size: int) -> None:
    """only a payload"""
    await _put(bench, queue, count, lambda _: Message(payload=b"x" * size))


async def with_id(bench: Bench, queue: str, count: int, size: int) -> None:
    """an id of 12 bytes"""
    await _put(bench, queue, count, lambda n: Message(id=f"m{n:011}", payload=b"x" * size))


async def with_headers(bench: Bench, queue: str, count: int, size: int) -> None:
    """a header of 20 bytes"""
    await _put(bench, queue, count, lambda _: Message(headers={"trace": "0123456789abcde"}, payload=b"x" * size))


async def waiting(bench: Bench, count: int) -> Table:
    """Bytes of the store for each message that waits."""
    table = Table(
        "Memory of the store for each waiting message",
        ["a message has", *(f"payload of {size:,} B: bytes" for size in SIZES)],
        f"{count:,} messages in one queue.",
    )
    for fill in (plain, bare, with_id, with_headers):
        cells = []
        for size in SIZES:
            queue = f"{fill.__name__}-{size}"
            before = used(bench)
            await fill(bench, queue, count, size)
            cells.append(f"{(used(bench) - before) / count:.1f}")
            bench.raw.eval("return redis.call('flushall', 'sync')", 0)  # by default Valkey frees in the background
        table.add(fill.__doc__ or "", *cells)
    return table


async def passing(bench: Bench, count: int) -> Table:
    """Memory of the service after so many messages that were put and got on streams at the same time."""
    table = Table(
        "Memory of the service while messages pass through",
        ["messages that passed", "resident memory, MB"],
        f"{count:,} messages of {PASSING_SIZE} B, Produce and Consume at once, one service process.",
    )
    process = psutil.Process(bench.services[0].pid)
    table.add("0", f"{process.memory_info().rss / MB:.1f}")
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        cell = Cell(count, PASSING_SIZE, clients=1, patience_s=PATIENCE_S)
        contest = Contest(CATALOGUE["Headway, streams"], cell, bench.services[0].address, Path(folder))
        running = asyncio.create_task(asyncio.to_thread(contest.at_once))
        steps = iter([count * n // STEPS for n in range(1, STEPS)])
        step = next(steps)
        while not running.done():
            done = contest.done
            if done >= step:
                table.add(f"{done:,}", f"{process.memory_info().rss / MB:.1f}")
                step = next(steps, count + 1)
            await asyncio.sleep(STEP_S)
        rate, fault = await running
    assert not fault, fault
    table.add(f"{count:,}", f"{process.memory_info().rss / MB:.1f}")
    print(f"{rate:,.0f} messages/s")
    return table


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=100_000, help="messages that wait")
    parser.add_argument("--passing", type=int, default=1_000_000, help="messages that pass through")
    options = parser.parse_args()
    async with started(1) as bench:
        tables = [await waiting(bench, options.waiting), await passing(bench, options.passing)]
    write(options.markdown, "bench-memory", made_by("bench", "bench.memory"), tables)


if __name__ == "__main__":
    asyncio.run(main())
