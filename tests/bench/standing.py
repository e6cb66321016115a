"""What standing in line costs, and how soon a turn comes when a holder is killed: part of `make bench-watch`. Prints
tables, and says where a figure misses its target.

A grant is one message put, leased to the first of those who stand, acked by it, and its place at the end of the line
taken again (`turns` 1): everything that the store does for that is counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import grpc.aio

from bench.crowd import Order, crowds
from bench.rig import Bench, StoreWork, cost_of, percentile, started
from bench.tables import no_arguments
from harness import eventually
from headway.v1 import queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import Line
from wire.streams import Standing

RUNS = 3
STANDING = (10, 100, 1_000)
GRANTS, GRANTS_PER_S = 300, 50
IDLE_S = 10.0
KILLS, LEASES = 100, 10
AHEAD = 3  # so many processes are starting while another is killed
KILL_TARGET_MS = 500.0


@dataclass(frozen=True)
class Run:
    """What grants and idleness cost with so many standing."""

    opened_s: float
    work: StoreWork
    waits_ms: Sequence[float]
    idle_commands: float
    idle_core: float


async def stood(bench: Bench, standing: int) -> Run:
    """So many stand; messages come one by one."""
    queue, stub = f"stand-{standing}", bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue, policy=queue_pb2.Policy(turns=1)))
    async with crowds(Order(bench.services[0].address, queue, standing=standing)) as [crowd]:
        opened = await crowd.open()
        await asyncio.sleep(2)
        idle = await cost_of(bench, IDLE_S)
        before, began, put_at = StoreWork.of(bench.raw), time.perf_counter(), list[float]()
        for n in range(GRANTS):
            await asyncio.sleep(max(began + n / GRANTS_PER_S - time.perf_counter(), 0))
            put_at.append(time.time())
            await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x" * 100)]))

        async def all_acked() -> bool:
            return (await stub.Describe(pb.DescribeRequest(queue=queue))).queue.counts.acked == GRANTS

        await eventually(all_acked, within=60)
        work = StoreWork.of(bench.raw) - before
        told, errors = await crowd.end()
    assert not errors, errors
    waits_ms = [(granted.at - at) * 1_000 for granted, at in zip(told, put_at, strict=True)]
    return Run(opened.took_s, work, waits_ms, idle.commands, idle.services[0])


def row(standing: int, runs: Sequence[Run]) -> str:
    """Medians of runs with the same number of those who stand."""
    cells = [
        f"{standing:8}",
        *(
            f"{statistics.median(values):8.1f}"
            for values in (
                [run.work.steps / GRANTS for run in runs],
                [run.work.commands / GRANTS for run in runs],
                [run.work.steps_us / GRANTS for run in runs],
                [percentile(run.waits_ms, 0.5) for run in runs],
                [percentile(run.waits_ms, 0.99) for run in runs],
                [run.idle_commands for run in runs],
                [run.idle_core for run in runs],
                [run.opened_s for run in runs],
            )
        ),
    ]
    return " ".join(cells)


# -- killed -----------------------------------------------------------------------------------------------------------


def _hold(pipe: Connection, address: str, queue: str) -> None:
    """A process that stands when it is told to, says when its turn has come, and holds what it was given."""

    async def hold() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.channel_ready()
            pipe.send("here")
            await asyncio.to_thread(pipe.recv)
            async with Standing(Line(QueueServiceStub(channel), queue), max_messages=LEASES) as held:
                pipe.send(len(await held.granted()))
                await asyncio.Event().wait()

    asyncio.run(hold())


class Holder:
    """Such a process, seen from here."""

    def __init__(self, address: str, queue: str) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_hold, args=(theirs, address, queue), daemon=True)
        self._process.start()
        theirs.close()

    async def hold(self) -> None:
        """Returns when it has its leases."""
        assert await asyncio.to_thread(self._pipe.recv) == "here"
        self._pipe.send("hold")
        assert await asyncio.to_thread(self._pipe.recv) == LEASES

    def kill(self) -> float:
        """SIGKILL; when it was sent."""
        pid = self._process.pid
        assert pid is not None
        at = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        return at

    def close(self) -> None:
        """Reaps it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


async def killed(bench: Bench) -> list[float]:
    """Milliseconds from the SIGKILL of a process that holds all slots to the next waiter's having the same messages."""
    queue, stub = "killed", bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue, policy=queue_pb2.Policy(limit=LEASES)))
    await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x" * 100)] * LEASES))
    line, found = Line(stub, queue), list[float]()
    holders = [Holder(bench.services[0].address, queue) for _ in range(AHEAD)]
    try:
        for _ in range(KILLS):
            holder = holders.pop(0)
            holders.append(Holder(bench.services[0].address, queue))
            await holder.hold()
            async with Standing(line, max_messages=LEASES) as waiter:
                killed_at = holder.kill()
                turn = await waiter.granted()
                found.append((time.perf_counter() - killed_at) * 1_000)
                assert [delivery.attempt for delivery in turn] == [1] * LEASES
            holder.close()
    finally:
        for holder in holders:
            holder.close()
    return found


async def main() -> None:
    """Runs everything and prints the tables."""
    print(f"\nconsumers standing on one queue of one process; {RUNS} runs, medians")
    print(f"{'':8} {'per grant':^26} {'put → turn, ms':^17} {'nothing to grant':^17} {'all open':>8}")
    heads = ("standing", "steps", "commands", "µs", "p50", "p99", "cmd/s", "% core", "s")
    print(" ".join(f"{head:>8}" for head in heads))
    for standing in STANDING:
        runs = []
        for _ in range(RUNS):
            async with started(1) as bench:
                runs.append(await stood(bench, standing))
        print(row(standing, runs), flush=True)
    async with started(1) as bench:
        late = await killed(bench)
    p50, p99, most = percentile(late, 0.5), percentile(late, 0.99), max(late)
    verdict = "" if p99 < KILL_TARGET_MS else f"  MISSES {KILL_TARGET_MS:.0f}"
    title = f"{KILLS} times kill -9 of a holder of {LEASES} → next has them, ms"
    print(
        f"\n{title:62} {'p50':>8} {'p99':>8} {'most':>8}\n{'':62} {p50:8.1f} {p99:8.1f} {most:8.1f}{verdict}",
        flush=True,
    )


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
