"""The end of a watch, whoever brings it about: nothing is left, and who is attended is withdrawn."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from soak.services import WatchedService
from wire.calls import UNAVAILABLE, Line, Message, line_at, span
from wire.watches import LONG_S, WITHDRAWN, Watched, watching, watching_queue

Connect = Callable[[str], grpc.aio.Channel]
_CLIENT = """
import sys, grpc
from headway.v1 import queue_service_pb2 as pb, queue_service_pb2_grpc
stub = queue_service_pb2_grpc.QueueServiceStub(grpc.insecure_channel(sys.argv[1]))
ids = pb.MessageIds(ids=sys.argv[3:], attended=True)
for told in stub.WatchPosition(pb.WatchPositionRequest(queue=sys.argv[2], messages=ids), timeout=60):
    print("told", flush=True)
"""


@pytest.fixture
def own(
    store_server: StoreServer, prefix: str, short_dir: object, make_service: Callable[..., ServiceProcess]
) -> ServiceProcess:
    """A process of this test's own, on the shared store."""
    return make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)


@pytest.fixture
async def there(line: Line, own: ServiceProcess, connect: Connect) -> AsyncIterator[Line]:
    """This test's queue, through that process."""
    async with line_at(own.address, line.name, connect) as opened:
        yield opened


async def put_three(line: Line) -> None:
    """One that will be worked on, one that waits, one that is delayed."""
    await line.create()
    await line.put(*(Message(id=id_, payload=id_.encode()) for id_ in ("works", "waits")))
    await line.put(Message(id="later", payload=b"", delay=span(600_000)))
    await line.take_one(lease_ms=600_000)


async def is_withdrawn(line: Line) -> bool:
    counts = await line.counts()
    return (counts.length, counts.leased, counts.delayed, counts.withdrawn) == (0, 1, 0, 2)


@pytest.mark.parametrize("how", ["cancel", "deadline", "connection"])
async def test_who_is_attended_is_withdrawn_when_the_stream_ends(
    line: Line, service: ServiceProcess, connect: Connect, how: str
) -> None:
    await put_three(line)
    async with connect(service.address) as channel:
        mine = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
        timeout = 1.0 if how == "deadline" else LONG_S
        async with watching(mine, "works", "waits", "later", attended=True, timeout=timeout) as watched:
            for _ in range(3):
                await watched.next()
            assert not await is_withdrawn(line)
            if how == "cancel":
                await watched.cancel()
            elif how == "deadline":
                with pytest.raises(grpc.aio.AioRpcError):
                    await watched.end()
            else:
                await channel.close()
            await eventually(lambda: is_withdrawn(line), within=5)


async def test_who_is_attended_is_withdrawn_when_the_client_is_killed(line: Line, service: ServiceProcess) -> None:
    await put_three(line)
    command = [sys.executable, "-c", _CLIENT, service.address, line.name, "works", "waits", "later"]
    client = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        for _ in range(3):
            assert await asyncio.to_thread(client.stdout.readline) == b"told\n"
        assert not await is_withdrawn(line)
        client.kill()
        await eventually(lambda: is_withdrawn(line), within=5)
    finally:
        client.kill()
        client.communicate()


async def test_who_is_not_attended_waits_on(line: Line) -> None:
    await put_three(line)
    async with watching(line, "waits", "later") as attentive, watching(line, "waits", attended=False) as watched:
        await attentive.next()
        await watched.next()
        await watched.cancel()
        async with watching(line, "waits") as again:
            await again.position(1)
    assert (await line.counts()).withdrawn == 0


async def test_many_attended_messages_are_withdrawn_whole(line: Line) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(1_300)]
    for first in (0, 650):
        await line.put(*(Message(id=id_, payload=b"") for id_ in ids[first : first + 650]))
    async with watching(line, *ids, attended=True) as watched:
        await watched.next()

    async def is_empty() -> bool:
        counts = await line.counts()
        return (counts.length, counts.withdrawn) == (0, 1_300)

    await eventually(is_empty, within=10)


async def test_a_process_that_goes_down_ends_its_streams_and_withdraws_the_attended(
    line: Line, there: Line, own: ServiceProcess
) -> None:
    await put_three(line)
    async with (
        watching(there, "waits", "later", attended=True) as attended,
        watching(there, "works") as watched,
        watching_queue(there, interval_ms=100) as board,
    ):
        for stream in (attended, attended, watched, board):
            await stream.next()
        own.signal(signal.SIGTERM)
        for ended in (attended, watched, board):
            with refused("SHUTTING_DOWN", UNAVAILABLE) as said:
                await ended.end()
            assert said.retry_delay is not None
    assert await asyncio.to_thread(own.wait) == 0
    await eventually(lambda: is_withdrawn(line))
    async with watching(line, "waits", "works") as resumed:  # by asking another process
        assert (await resumed.finished("waits")).outcome == WITHDRAWN
        await resumed.leased("works")


async def test_watchers_on_two_processes_are_told_the_same(line: Line, there: Line) -> None:
    await line.create()
    await line.put(*(Message(id=f"m{number}", payload=b"") for number in range(3)))
    async with watching(line, "m2") as here, watching(there, "m2") as other:
        for position in (3, 2, 1):
            await here.position(position)
            await other.position(position)
            lease = (await there.take_one()).lease
            await line.ack(lease, result=b"r")
        for stream in (here, other):
            assert (await stream.finished()).result == b"r"
            await stream.end()


async def test_a_reader_that_does_not_read_gets_the_latest_and_delays_nobody(line: Line) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(3_000)]
    for first in range(0, 3_000, 1_000):
        await line.put(*(Message(id=id_, payload=b"") for id_ in ids[first : first + 1_000]))
    request = queue_service_pb2.WatchPositionRequest(
        queue=line.name, messages=queue_service_pb2.MessageIds(ids=["m19", *ids[:19], *ids[20:]])
    )
    slow = line.stub.WatchPosition(request, timeout=LONG_S)
    begun: Any = await slow.read()  # and no more: the rest stays with the service when the wire is full
    assert begun.position.id == "m19"
    async with watching(line, "m19") as quick:
        for position in range(20, 0, -1):
            await quick.position(position)
            await line.ack((await line.take_one()).lease)
        await quick.finished("m19")
    rest = Watched(slow)
    told = await rest.next(lambda told: told.WhichOneof("event") == "finished" and told.finished.id == "m19")
    assert [one.sequence for one in rest.told[: rest.told.index(told) + 1]] == list(range(2, rest.told.index(told) + 3))
    await rest.cancel()


@pytest.fixture
def watched_service(
    store_server: StoreServer, prefix: str, short_dir: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WatchedService]:
    """A process that tells its tasks."""
    folder = tmp_path_factory.mktemp("watched")
    service = WatchedService(folder, env={"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": prefix})
    try:
        service.start()
        yield service
    finally:
        service.stop()


async def test_streams_that_ended_leave_no_task(
    line: Line, watched_service: WatchedService, store_server: StoreServer, connect: Connect
) -> None:
    await line.create()
    await line.put(*(Message(id=f"m{number}", payload=b"") for number in range(20)))
    async with line_at(watched_service.address, line.name, connect) as mine:
        await mine.describe()

        async def one(number: int) -> None:
            async with watching(mine, f"m{number % 20}") as watched, watching_queue(mine) as board:
                if number % 3:
                    await watched.next()
                if number % 5:
                    await board.next()

        def of_queues() -> list[str]:
            tasks = watched_service.holdings(store_server.port).tasks
            return [name for name in tasks if ":" in name or name in ("WatchPosition", "WatchQueue")]

        async with watching(mine, "m0") as watched:
            await watched.next()
            assert await asyncio.to_thread(of_queues)
        for _ in range(5):
            await asyncio.gather(*(one(number) for number in range(60)))

        async def is_clean() -> bool:
            return not await asyncio.to_thread(of_queues)

        await eventually(is_clean, within=10)
