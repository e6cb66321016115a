"""What open dashboards cost the service: nobody, one page and twenty, with idle queues, with 50 under load, and among a
thousand. Part of `make bench`. Prints a table; judges nothing.

A page here is a client that reads the page's one stream and throws it away: the browser's part is not measured.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx

from bench.rig import cpu_s
from bench.tables import no_arguments
from harness import ServiceProcess, StoreServer
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

QUEUES, MANY, PAGES = 50, 1_000, 20
EACH_S, SETTLE_S = 10.0, 3.0
ROUNDS_PER_S = 4.0  # of each loaded queue: puts some, takes and acks as many


@dataclass
class Reader:
    """One page."""

    read: int = 0

    async def run(self, url: str, view: dict[str, str]) -> None:
        """Until it is cancelled."""
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(30)) as client,
            client.stream("GET", f"{url}/dashboard/events", params=view) as response,
        ):
            async for chunk in response.aiter_raw():
                self.read += len(chunk)


class Load:
    """Puts to queues, and takes and acks."""

    def __init__(self, stub: QueueServiceStub, names: list[str]) -> None:
        self._stub = stub
        self._names = names

    async def create(self) -> None:
        """Makes the queues."""
        for name in self._names:
            policy = queue_pb2.Policy(limit=100)
            await self._stub.Create(queue_service_pb2.CreateRequest(queue=name, policy=policy))  # type: ignore[misc]

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._names:
                tasks.create_task(self._work(name))

    async def _work(self, name: str) -> None:
        while True:
            await asyncio.sleep(random.expovariate(ROUNDS_PER_S))
            put = queue_service_pb2.PutRequest(queue=name, messages=[message_pb2.Message(payload=b"x" * 100)] * 5)
            await self._stub.Put(put)  # type: ignore[misc]
            get = queue_service_pb2.GetRequest(queue=name, max_messages=5)
            found = await self._stub.Get(get)  # type: ignore[misc]
            leases = [each.lease for each in found.deliveries]
            await self._stub.Ack(queue_service_pb2.AckRequest(queue=name, leases=leases))  # type: ignore[misc]


async def cost(service: ServiceProcess, store: StoreServer, pages: int, view: dict[str, str]) -> tuple[float, ...]:
    """Of the service and of the store in percent of a core, and KB/s that a page reads."""
    readers = [Reader() for _ in range(pages)]
    tasks = [asyncio.create_task(reader.run(service.http, view)) for reader in readers]
    await asyncio.sleep(SETTLE_S)
    watched = (service.pid, store.pid)
    before, began = [cpu_s(each) for each in watched], time.monotonic()
    read_before = sum(reader.read for reader in readers)
    await asyncio.sleep(EACH_S)
    took = time.monotonic() - began
    shares = [(cpu_s(each) - was) / took * 100 for each, was in zip(watched, before, strict=True)]
    read = (sum(reader.read for reader in readers) - read_before) / max(pages, 1) / took / 1e3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (*shares, read)


async def main() -> None:
    """Prints the table."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hw-")))
        (folder / "store").mkdir()
        store = StoreServer("valkey", folder / "store")
        store.start()
        stack.callback(store.stop)
        env = {"HEADWAY_REDIS_URL": store.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0", "HEADWAY_LOG_LEVEL": "warning"}
        service = ServiceProcess(folder, env=env)
        service.start()
        stack.callback(service.stop)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(service.address))
        load = Load(QueueServiceStub(channel), [f"busy-{number:02d}" for number in range(QUEUES)])
        await load.create()
        print("| queues | pages | service, of a core | store, of a core | a page reads |\n|---|---|---|---|---|")

        async def row(what: str, pages: int, view: dict[str, str]) -> None:
            service_share, store_share, read = await cost(service, store, pages, view)
            print(f"| {what} | {pages} | {service_share:.1f} % | {store_share:.1f} % | {read:.1f} KB/s |", flush=True)

        for pages in (0, 1, PAGES):
            await row(f"{QUEUES} idle", pages, {"prefix": "busy-"})
        working = asyncio.create_task(load.run())
        for pages in (0, 1, PAGES):
            await row(f"{QUEUES} with {QUEUES * ROUNDS_PER_S * 5:.0f} messages/s in all", pages, {"prefix": "busy-"})
        await row("one of them in depth", PAGES, {"queue": "busy-00"})
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await Load(QueueServiceStub(channel), [f"many-{number:04d}" for number in range(MANY)]).create()
        await row(f"{MANY} idle, 100 of them shown", 1, {"prefix": "many-"})


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
