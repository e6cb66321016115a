"""Those who watch while the store is in trouble: a stream that stands goes on, a new one is told."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from faults.conftest import Open, Serve
from faults.moments import works, written
from harness import FaultProxy, StoreServer, eventually, refused
from wire.calls import UNAVAILABLE, Line, Message
from wire.watches import DONE, WITHDRAWN, watching, watching_blocked, watching_queue

pytestmark = pytest.mark.any_store


async def put(line: Line) -> None:
    await line.create()
    await line.put(*(Message(id=f"m{number}", payload=b"%d" % number) for number in range(3)))


async def is_there(line: Line) -> bool:
    try:
        return bool(await line.describe())
    except grpc.aio.AioRpcError:
        return False


async def test_streams_live_through_a_restart_of_the_store(line: Line, fresh_store_server: StoreServer) -> None:
    await put(line)
    async with watching(line, "m2") as watched, watching_queue(line, interval_ms=100) as board:
        await watched.position(3)
        await board.next(lambda told: told.queue.counts.length == 3)
        await written(fresh_store_server)
        fresh_store_server.kill()
        async with watching(line, "m2") as new:
            with refused("STORE_UNAVAILABLE", UNAVAILABLE) as said:
                await new.end(within=4)
            assert said.retry_delay is not None
        async with watching_queue(line) as new:
            with refused("STORE_UNAVAILABLE", UNAVAILABLE):
                await new.end(within=4)
        assert not watched.has_ended
        assert not board.has_ended
        await asyncio.to_thread(fresh_store_server.start)
        await eventually(lambda: works(line), within=10)
        await line.ack((await line.take_one()).lease)
        await watched.position(2)
        await board.next(lambda told: told.queue.counts.acked == 1)
        await line.take_one()
        await line.ack((await line.take_one()).lease, result=b"r")
        ended = await watched.finished()
        assert (ended.outcome, ended.result) == (DONE, b"r")


async def test_a_silent_store_is_waited_for_and_a_new_stream_is_told_in_time(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    direct = await open_line(await serve(fresh_store_server.url), "jobs")
    async with FaultProxy(fresh_store_server.port) as proxy:
        line = await open_line(await serve(proxy.url), "jobs")
        await put(line)
        async with watching(line, "m1") as watched:
            await watched.position(2)
            proxy.silent = True
            await direct.ack((await direct.take_one()).lease)
            begun = time.monotonic()
            async with watching(line, "m2") as new:
                with refused("STORE_UNAVAILABLE", UNAVAILABLE):
                    await new.end()
            assert time.monotonic() - begun < 3
            proxy.silent = False
            await watched.position(1)


async def test_a_blocked_producer_is_followed_through_a_restart_of_the_store(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create(bound=1)
    await line.put(b"first")
    waiting = [asyncio.create_task(line.put(b"a", wait_ms=60_000, producer="a"))]
    async with watching_blocked(line, "a") as first, watching_blocked(line, "b") as second:
        await first.next(lambda told: told.position.position == 1)
        waiting.append(asyncio.create_task(line.put(b"b", wait_ms=60_000, producer="b")))
        await second.next(lambda told: told.position.position == 2)
        await written(fresh_store_server)
        fresh_store_server.kill()
        async with watching_blocked(line, "b") as new:
            with refused("STORE_UNAVAILABLE", UNAVAILABLE):
                await new.end(within=4)
        await asyncio.to_thread(fresh_store_server.start)
        await eventually(lambda: is_there(line), within=10)
        await line.take_one()
        await first.next(lambda told: told.position.position == 0)
        await second.next(lambda told: told.position.position == 1)
        await line.take_one(wait_ms=5_000)
        await second.next(lambda told: told.position.position == 0)
        await asyncio.gather(*waiting)


async def test_who_is_attended_is_withdrawn_when_the_store_is_back(line: Line, fresh_store_server: StoreServer) -> None:
    await put(line)
    async with watching(line, "m1", attended=True) as watched:
        await watched.position(2)
        await written(fresh_store_server)
        fresh_store_server.kill()
    await asyncio.to_thread(fresh_store_server.start)
    await eventually(lambda: works(line), within=10)
    async with watching(line, "m1") as late:
        assert (await late.finished()).outcome == WITHDRAWN


async def test_nothing_is_missed_while_the_store_forgets_what_happened(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    direct = await open_line(await serve(fresh_store_server.url), "jobs")
    async with FaultProxy(fresh_store_server.port) as proxy:
        line = await open_line(await serve(proxy.url), "jobs")
        await put(line)
        async with watching(line, "m0", "m2") as watched:
            await watched.position(3, "m2")
            proxy.silent = True
            await direct.ack((await direct.take_one()).lease)
            with fresh_store_server.client() as client:
                assert client.delete(*client.keys("*jobs:x:log")) == 1
            proxy.silent = False
            await watched.finished("m0")
            await watched.position(2, "m2")
