"""What every benchmark stands on: one durable store, two services, and a few words for measuring."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
import psutil
import redis
from google.protobuf.duration_pb2 import Duration

from harness import ServiceProcess, StoreServer
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
    """Two services on one store."""

    store: StoreServer
    raw: redis.Redis
    services: tuple[ServiceProcess, ServiceProcess]
    stubs: tuple[Stub, Stub]


@dataclass(frozen=True)
class Cost:
    """What a time of doing nothing costs: shares of a core in percent, and commands that the store did per second."""

    services: tuple[float, ...]
    store: float
    commands: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def cost_of(bench: Bench, seconds: float) -> Cost:
    """Of the next seconds. The asking itself is not counted."""
    processes = [psutil.Process(pid) for pid in (*(service.pid for service in bench.services), bench.store.pid)]

    def used() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in processes]

    # Commands that scripts do count, too; the INFO that reads the number has not been counted yet when it reads it.
    before, commands, began = used(), bench.raw.info("stats")["total_commands_processed"], time.perf_counter()
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - began, used()
    done = bench.raw.info("stats")["total_commands_processed"] - commands - 1
    *services, store = ((end - start) / took * 100 for start, end in zip(before, after, strict=True))
    return Cost(tuple(services), store, done / took)


@asynccontextmanager
async def started() -> AsyncIterator[Bench]:
    """Starts the store and two services, and stops them."""
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
                yield Bench(store, store.client(timeout_s=60), (services[0], services[1]), stubs)
        finally:
            for service in services:
                service.stop()
            store.stop()
