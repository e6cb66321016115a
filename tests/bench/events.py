"""What one page costs that watches 1,000 messages by server-sent events while the queue flows: part of
`make bench-watch`. Prints a table, and says where a figure misses its target.

A worker takes one message after the other and acks the one before in the same call, so often a second. The messages
that are watched stand at the head, one behind the other: all that is told at once is told of them. The share of a core
is that of the service's process, beside the same without the page.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.rig import Bench, Stub, cpu_s, started
from bench.tables import no_arguments
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

RUNS = 3
MOVES_PER_S = (10, 50, 100)
WATCHED, LENGTH = 1_000, 3_000
FLOWS_S, MOST_MOVES = 8.0, 900  # the last of those watched are still waiting at the end
TARGET_PERCENT = 10.0
QUEUE = "watched"


@dataclass
class Page:
    """What a browser would have been sent."""

    events: int = 0
    bytes: int = 0
    has_all: asyncio.Event = field(default_factory=asyncio.Event)  # has been told of every message

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Until cancelled."""
        while data := await reader.read(1 << 20):
            self.events += data.count(b"event: ")
            self.bytes += len(data)
            if self.events >= WATCHED:
                self.has_all.set()


@dataclass(frozen=True)
class Run:
    """Percent of a core, head moves a second, and what the page was sent a second."""

    percent: float
    moves: float
    events: float
    kilobytes: float


async def fill(stub: Stub) -> None:
    """The queue; the id of each message is its number from the head."""
    await stub.Create(pb.CreateRequest(queue=QUEUE))
    for start in range(0, LENGTH, 1_000):
        messages = [Message(id=str(n), payload=b"x" * 100) for n in range(start, start + 1_000)]
        await stub.Put(pb.PutRequest(queue=QUEUE, messages=messages))


async def flow(stub: Stub, moves_per_s: int) -> int:
    """Moves the head at its pace; how often."""
    leases, began = list[str](), time.perf_counter()
    count = min(int(FLOWS_S * moves_per_s), MOST_MOVES)
    for n in range(count):
        await asyncio.sleep(max(began + n / moves_per_s - time.perf_counter(), 0))
        answer = await stub.Get(pb.GetRequest(queue=QUEUE, ack=leases))
        leases = [delivery.lease for delivery in answer.deliveries]
    return count


async def opened(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A page's stream."""
    (url,) = (each for each in bench.services[0].addresses if each.startswith("http://"))
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    body = json.dumps({"ids": [str(n) for n in range(WATCHED)]}).encode()
    head = f"POST /queues/{QUEUE}/events HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


async def run(moves_per_s: int, *, is_watched: bool) -> Run:
    """One run, with a service of its own."""
    async with started(1, HEADWAY_HTTP_LISTEN="127.0.0.1:0") as bench:
        await fill(bench.stubs[0])
        page, reading = Page(), None
        if is_watched:
            reader, writer = await opened(bench)
            reading = asyncio.create_task(page.read(reader))
            await page.has_all.wait()
        await asyncio.sleep(1)
        page.events = page.bytes = 0
        service = bench.services[0].pid
        before, began = cpu_s(service), time.perf_counter()
        moves = await flow(bench.stubs[0], moves_per_s)
        used, took_s = cpu_s(service) - before, time.perf_counter() - began
        told = Run(used / took_s * 100, moves / took_s, page.events / took_s, page.bytes / took_s / 1_000)
        if reading is not None:
            reading.cancel()
            writer.close()
    return told


def row(without: Sequence[Run], watched: Sequence[Run]) -> str:
    """Medians."""
    percents = [statistics.median(each.percent for each in runs) for runs in (without, watched)]
    page = percents[1] - percents[0]
    cells = [
        statistics.median(each.moves for each in watched),
        *percents,
        page,
        statistics.median(each.events for each in watched),
        statistics.median(each.kilobytes for each in watched),
    ]
    verdict = "" if page < TARGET_PERCENT else f"  MISSES {TARGET_PERCENT:.0f} %"
    return " ".join(f"{cell:8.1f}" for cell in cells) + verdict


async def main() -> None:
    """Runs everything and prints the table."""
    print(
        f"\n{WATCHED} messages at the head watched by one page, server-sent events; {RUNS} runs, medians; % of a core"
    )
    heads = ("moves/s", "without", "with", "the page", "events/s", "kB/s")
    print(" ".join(f"{head:>8}" for head in heads))
    for moves_per_s in MOVES_PER_S:
        runs = [
            (await run(moves_per_s, is_watched=False), await run(moves_per_s, is_watched=True)) for _ in range(RUNS)
        ]
        print(row([each[0] for each in runs], [each[1] for each in runs]), flush=True)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
