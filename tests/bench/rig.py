"""What every benchmark stands on: one durable store, one or two services, and a few words for measuring."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
import psutil
import redis
from google.protobuf.duration_pb2 import Duration

from bench.tables import settings
from harness import ServiceProcess, StoreServer, processes
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

if TYPE_CHECKING:
    from headway.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

Stub: TypeAlias = "QueueServiceAsyncStub"
PREFIX = "__bench__"


def span(value: timedelta) -> Duration:
    """As the schema has it."""
    duration = Duration()
    duration.FromTimedelta(value)
    return duration


LONG = span(timedelta(minutes=10))


@dataclass(frozen=True)
class Bench:
    """Services on one store, each with a stub."""

    store: StoreServer
    raw: redis.Redis
    services: tuple[ServiceProcess, ...]
    stubs: tuple[Stub, ...]


@dataclass(frozen=True)
class Cost:
    """What a time of doing nothing costs: shares of a core in percent, and commands that the store did per second."""

    services: tuple[float, ...]
    store: float
    commands: float


@dataclass(frozen=True)
class StoreWork:
    """What the store did so far: steps (calls of scripts), all commands, those in scripts included, and the time that
    the steps took."""

    steps: int
    commands: int
    steps_us: float

    @classmethod
    def of(cls, raw: redis.Redis) -> StoreWork:
        """As INFO commandstats has it. The INFO itself is counted by the next one, so it is left out."""
        stats = {name: value for name, value in raw.info("commandstats").items() if name != "cmdstat_info"}
        nothing = {"calls": 0, "usec": 0}
        steps, through_gates = (stats.get(f"cmdstat_{name}", nothing) for name in ("evalsha", "lpushx"))
        calls = steps["calls"] - through_gates["calls"]  # a step through a gate has two
        return cls(calls, sum(each["calls"] for each in stats.values()), steps["usec"] + through_gates["usec"])

    def __sub__(self, before: StoreWork) -> StoreWork:
        return StoreWork(self.steps - before.steps, self.commands - before.commands, self.steps_us - before.steps_us)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def each_us(act: Callable[[], Awaitable[object]], times: int, rounds: int = 7) -> float:
    """Microseconds of one, so many times; the best of some rounds: whatever disturbs makes it longer only."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            await act()
        best = min(best, (time.perf_counter() - began) / times * 1e6)
    return best


def cpu_s(pid: int) -> float:
    """Processor time that a process took so far."""
    return sum(psutil.Process(pid).cpu_times()[:2])


async def cost_of(bench: Bench, seconds: float) -> Cost:
    """Of the next seconds. The asking itself is not counted."""

    def used() -> list[float]:
        return [cpu_s(pid) for pid in (*(service.pid for service in bench.services), bench.store.pid)]

    # Commands that scripts do count, too; the INFO that reads the number has not been counted yet when it reads it.
    before, commands, began = used(), bench.raw.info("stats")["total_commands_processed"], time.perf_counter()
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - began, used()
    done = bench.raw.info("stats")["total_commands_processed"] - commands - 1
    *services, store = ((end - start) / took * 100 for start, end in zip(before, after, strict=True))
    return Cost(tuple(services), store, done / took)


@asynccontextmanager
async def started(count: int = 2, **own: str) -> AsyncIterator[Bench]:
    """Starts the store and so many services, with what the environment sets and with settings of their own, which go
    before it, and stops them."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hw-")))
        store = StoreServer("valkey", folder, durable=True)
        stack.callback(store.stop)
        store.start()
        services, stubs = [], []
        for n in range(count):
            (folder / str(n)).mkdir()
            env = {"HEADWAY_REDIS_URL": store.url, "PRESSURE_PREFIX": PREFIX, "HEADWAY_LOG_LEVEL": "warning"}
            service = ServiceProcess(folder / str(n), env=env | settings() | own)
            stack.callback(service.stop)
            services.append(service.start())
        for service in services:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(service.address))
            stubs.append(QueueServiceStub(channel))
        yield Bench(store, store.client(timeout_s=60), tuple(services), tuple(stubs))


@asynccontextmanager
async def empty_service(acceptors: int = 1, *, is_own: bool = False) -> AsyncIterator[tuple[str, int]]:
    """Address and process of a service that does nothing (echo.py), with so many acceptors: servers of grpc.aio, or of
    Headway's own kind."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        command = [sys.executable, "-m", "bench.echo", str(acceptors), *(["own"] if is_own else [])]
        log = Path(folder) / "echo.log"
        process = processes.spawn(command, log=log, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        try:
            assert process.stdout is not None
            yield (await asyncio.to_thread(process.stdout.readline)).decode().strip(), process.pid
        finally:
            processes.stop(process)
