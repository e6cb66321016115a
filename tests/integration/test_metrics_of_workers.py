"""Several workers are scraped as one, whichever of them answers, and whoever of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

import grpc
import httpx
import psutil
import pytest

from harness import ServiceProcess, StoreServer, eventually
from harness.scraping import Scraped, scrape
from wire.calls import Line, line_at

MakeService = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]
SEEN_S = 20.0

pytestmark = [
    pytest.mark.any_store,
    pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="no SO_REUSEPORT on this system"),
]


def workers_of(service: ServiceProcess) -> set[int]:
    """The processes that serve."""
    found: set[int] = set()
    for one in psutil.Process(service.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "headwayd.worker" in one.cmdline():
                found.add(one.pid)
    return found


@pytest.fixture
def two(make_service: MakeService, fresh_store_server: StoreServer) -> ServiceProcess:
    """Two workers on a store of this test's own."""
    return make_service(
        HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_HTTP_LISTEN="127.0.0.1:0", flags=("--workers", "2")
    )


async def put_over_many_connections(service: ServiceProcess, connect: Connect, count: int) -> None:
    """So many Puts, each over a connection of its own, which the kernel gives to either worker."""
    for _ in range(count):
        async with line_at(service.address, "jobs", connect) as line:
            await line.put(b"1")


def answered_by(service: ServiceProcess, port: int) -> set[int]:
    """The workers that have a connection to that port."""
    return {
        pid
        for pid in workers_of(service)
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
    }


async def test_each_worker_tells_the_numbers_of_all(two: ServiceProcess, connect: Connect) -> None:
    async with line_at(two.address, "jobs", connect) as line:
        await line.create()
    await put_over_many_connections(two, connect, 40)

    async def all_are_told() -> bool:  # what another worker did is told within seconds
        told = await scrape(two)
        return (
            told.value("messages_put_total", queue="jobs") == told.value("calls_total", method="Put", code="OK") == 40
        )

    await eventually(all_are_told, within=SEEN_S)
    port = int(two.http.rpartition(":")[2])
    answers: dict[int, Scraped] = {}
    async with AsyncExitStack() as stack:
        while answers.keys() != workers_of(two):
            before = answered_by(two, port)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=10))
            text = (await client.get(f"{two.http}/metrics")).text
            [pid] = (answered_by(two, port) - before) or {0}
            if pid:
                answers[pid] = Scraped(text, is_open=False)
    for told in answers.values():
        assert told.value("messages_put_total", queue="jobs") == 40
        assert told.value("queue_messages", queue="jobs", state="waiting") == 40  # of the store: not twice
        assert told.value("ready") == 1
        assert told.sum("build_info") == 1


@pytest.mark.long
async def test_no_counter_falls_when_a_worker_is_killed_and_another_goes_on_from_there(
    two: ServiceProcess, connect: Connect
) -> None:
    async with line_at(two.address, "jobs", connect) as line:
        await line.create()
    await put_over_many_connections(two, connect, 20)

    async def are_told(count: int) -> bool:
        told = await scrape(two)
        return told.value("messages_put_total", queue="jobs") == count

    await eventually(lambda: are_told(20), within=SEEN_S)
    for serving, victim in enumerate(sorted(workers_of(two)), 3):
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(SEEN_S):
            while two.log.read_text().count("worker serves") < serving:
                with contextlib.suppress(httpx.TransportError):  # it was the victim's connection
                    told = await scrape(two)
                    assert told.value("messages_put_total", queue="jobs") == 20
    await eventually(lambda: are_told(20), within=SEEN_S)
    async with line_at(two.address, "jobs", connect) as line:
        await put_until_taken(line)
    await eventually(lambda: are_told(21), within=SEEN_S)


async def put_until_taken(line: Line) -> None:
    """One message, however often the connection must be made anew."""

    async def is_taken() -> bool:
        try:
            await line.put(b"1")
        except grpc.aio.AioRpcError:
            return False
        return True

    await eventually(is_taken, within=SEEN_S)
