"""Fixtures of the fault tests: services whose store, wire or callers fail on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import grpc
import pytest

from faults.wires import ReplyProxy
from harness import ServiceProcess, StoreServer, eventually
from wire.calls import Line, line_at

Serve = Callable[..., Awaitable[ServiceProcess]]
Connect = Callable[[str], grpc.aio.Channel]
Open = Callable[..., Awaitable[Line]]


@pytest.fixture
def serve(make_service: Callable[..., ServiceProcess]) -> Serve:
    """Starts a service on the store at a URL, while the event loop goes on (a proxy may live there)."""

    async def start(url: str, **env: str) -> ServiceProcess:
        service = make_service(HEADWAY_REDIS_URL=url, start=False, **env)
        return await asyncio.to_thread(service.start)

    return start


@pytest.fixture
async def open_line(connect: Connect) -> AsyncIterator[Open]:
    """A queue through a service: `await open_line(service, "jobs")`; each over a connection of its own."""
    async with AsyncExitStack() as stack:

        async def open_one(service: ServiceProcess, name: str) -> Line:
            return await stack.enter_async_context(line_at(service.address, name, connect))

        yield open_one


@pytest.fixture
async def line(fresh_store_server: StoreServer, serve: Serve, open_line: Open) -> Line:
    """A queue, not made yet, through a service on a store of this test's own."""
    return await open_line(await serve(fresh_store_server.url), "jobs")


@pytest.fixture
async def proxy(fresh_store_server: StoreServer) -> AsyncIterator[ReplyProxy]:
    """A wire to that store."""
    async with ReplyProxy(fresh_store_server.port) as wire:
        yield wire


@pytest.fixture
async def shaky(proxy: ReplyProxy, serve: Serve, open_line: Open) -> Line:
    """The same queue through another service, over that wire."""
    return await open_line(await serve(proxy.url), "jobs")


@pytest.fixture
async def replicated_pair(make_store_server: Callable[..., StoreServer]) -> tuple[StoreServer, StoreServer]:
    """A primary that writes only while a replica has what it wrote, and that replica."""
    primary = make_store_server("--min-replicas-to-write", "1", "--min-replicas-max-lag", "3")
    replica = make_store_server("--replicaof", "127.0.0.1", str(primary.port))
    with primary.client() as client:
        await eventually(lambda: client.info("replication").get("min_slaves_good_slaves") == 1, within=20)
    return primary, replica
