"""What others notice of clients that abuse the service: `make bench-abuse`. Prints a table.

One service process. A caller of good manners makes a round of Put, Get and Ack at each instant of an open loop, and is
late from that instant on. Each kind of abuse is measured in pairs, without and with it, one after the other, several
times; what counts is the median of the ratios of their p99. The abusers have a process of their own that runs at a
lower priority than the service: it stands for machines that are not this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from base64 import b64encode
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc.aio
import psutil

from bench.abusers import Plan, Tally
from bench.rig import Bench, Stub, percentile, started
from bench.tables import Table, arguments, made_by, spread, write
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

RATE = 50.0  # rounds a second
NICENESS = 10
SETTLE_S = 3.0  # from when all abusers are at it until it counts
RATIO_TARGET = 2.0
TIMEOUT_S = 20.0
_TESTS = Path(__file__).resolve().parents[1]
_MIB = 1024 * 1024
_QUEUES = "/headway.v1.QueueService"


@dataclass(frozen=True)
class Abuse:
    """One kind of it."""

    name: str
    kind: str
    connections: int
    streams: int = 0
    method: str = ""
    request: bytes = b""

    def plan(self, port: int) -> Plan:
        """As the abusers are told."""
        path, request = f"{_QUEUES}/{self.method}", b64encode(self.request).decode()
        return Plan(port, self.kind, self.connections, path, request, self.streams)


def _consume() -> bytes:
    start = pb.ConsumeStart(queue="spoil", credit=pb.Credit(messages=1_000))
    return pb.ConsumeRequest(start=start).SerializeToString()


ABUSES = (
    Abuse("5,000 idle connections", "idle", 5_000),
    Abuse(
        "1,000 streams that never read (WatchQueue)",
        "unread",
        10,
        100,
        "WatchQueue",
        pb.WatchQueueRequest(queue="jobs").SerializeToString(),
    ),
    Abuse("1,000 streams that never read (Consume)", "unread", 10, 100, "Consume", _consume()),
    Abuse("rapid resets, 4 connections", "resets", 4, 0, "Put"),
    Abuse("1,000 connections, a byte a second each", "trickle", 1_000, 0, "Put"),
)


class Abusing:
    """The process of the abusers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tally: Tally | None = None

    @classmethod
    async def begin(cls, plan: Plan) -> Abusing:
        """Returns when all are at it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.abusers"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_TESTS,
            preexec_fn=lambda: os.nice(NICENESS),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        assert await process.stdout.readline() == b"at it\n"
        return cls(process)

    async def end(self) -> Tally:
        """What came of it. Idempotent."""
        if self._tally is not None:
            return self._tally
        out, _ = await self._process.communicate(b"")  # which ends its input
        assert self._process.returncode == 0, f"the abusers ended with {self._process.returncode}"
        self._tally = Tally(**json.loads(out))
        return self._tally


@dataclass(frozen=True)
class Seen:
    """What the caller of good manners saw."""

    late_ms: list[float]
    failed: Counter[str]  # by what the service said

    @property
    def p99_ms(self) -> float:
        """The 99th percentile."""
        return percentile(self.late_ms, 0.99)


async def rounds(stub: Stub, seconds: float) -> Seen:
    """A round at each instant, whether or not those before have ended."""
    late: list[float] = []
    failed: Counter[str] = Counter()

    async def go(instant: float) -> None:
        try:
            await stub.Put(pb.PutRequest(queue="jobs", messages=[Message(payload=b"x" * 100)]), timeout=TIMEOUT_S)
            got = await stub.Get(pb.GetRequest(queue="jobs", max_messages=1), timeout=TIMEOUT_S)
            leases = [each.lease for each in got.deliveries]
            if leases:
                await stub.Ack(pb.AckRequest(queue="jobs", leases=leases), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            failed[f"{error.code().name}: {error.details()}"] += 1
        late.append((time.perf_counter() - instant) * 1_000)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for n in range(int(seconds * RATE)):
            instant = began + n / RATE
            await asyncio.sleep(max(instant - time.perf_counter(), 0))
            calls.create_task(go(instant))
    return Seen(late, failed)


async def pair(bench: Bench, abuse: Abuse, seconds: float) -> tuple[Seen, Seen, Tally, float]:
    """Without, then with it; what the abusers saw, and by how many MiB the service grew at most."""
    service = bench.services[0]
    process = psutil.Process(service.pid)
    without = await rounds(bench.stubs[0], seconds)
    before = most = process.memory_info().rss
    abusing = await Abusing.begin(abuse.plan(int(service.address.rpartition(":")[2])))
    await asyncio.sleep(SETTLE_S)
    measuring = asyncio.create_task(rounds(bench.stubs[0], seconds))
    while not measuring.done():
        most = max(most, process.memory_info().rss)
        await asyncio.wait({measuring}, timeout=0.1)
    tally = await abusing.end()
    return without, await measuring, tally, (most - before) / _MIB


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="for each half of a pair")
    parser.add_argument("--pairs", type=int, default=3, help="of each kind")
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    options = parser.parse_args()
    table = Table(
        "Abuse, and what others notice of it",
        ["abuse", "p99 without, ms", "p99 with, ms", "ratio", "calls failed", "abusers", "service grew by, MiB"],
        f"A round of Put, Get and Ack {RATE:.0f} times a second, {options.seconds:.0f} s for each half of"
        f" {options.pairs} pairs; medians and ranges.",
    )
    async with started(1) as bench:
        for queue in ("jobs", "spoil"):
            await bench.stubs[0].Create(pb.CreateRequest(queue=queue))
        await rounds(bench.stubs[0], 2.0)  # warm
        for abuse in ABUSES:
            if options.only not in abuse.name:
                continue
            for _ in range(20 if abuse.method == "Consume" else 0):
                messages = [Message(payload=b"x" * 1_024)] * 1_000
                await bench.stubs[0].Put(pb.PutRequest(queue="spoil", messages=messages))
            pairs = [await pair(bench, abuse, options.seconds) for _ in range(options.pairs)]
            ratio = statistics.median(there.p99_ms / without.p99_ms for without, there, _, _ in pairs)
            told = pairs[-1][2]
            table.add(
                abuse.name,
                spread([without.p99_ms for without, _, _, _ in pairs]),
                spread([there.p99_ms for _, there, _, _ in pairs]),
                f"{ratio:.2f}{'' if ratio <= RATIO_TARGET else ' **misses**'}",
                ", ".join(f"{count} {what}" for what, count in sum((p[1].failed for p in pairs), Counter()).items())
                or "none",
                f"{told.opened:,} connections, {told.closed_by_service:,} closed by the service"
                + (f", {told.resets:,} resets" if told.resets else ""),
                spread([grew for _, _, _, grew in pairs]),
            )
    write(options.markdown, "bench-abuse", made_by("bench-abuse"), [table])


if __name__ == "__main__":
    asyncio.run(main())
