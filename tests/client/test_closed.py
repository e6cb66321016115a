"""A client that is closed: whatever is begun with it raises ClientClosed, and the process lives on."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc
import pytest

import headway
from client.conftest import DEADLINE_SECONDS
from client.fake_service import Failure, FakeQueue, FakeService
from headway.core import watch

# Whose stub is made first, and what makes the other one, or both, behind the close. Run apart: gRPC could end it.
BEHIND_CLOSE = """
import asyncio, headway

async def produce(queue):
    async with queue.producer():
        pass

async def nothing(lease):
    pass

OPENED = {"queues": lambda c: c.queue("q").describe(), "admin": lambda c: c.server_info(), "": lambda c: None}
BEGUN = {
    "server_info": lambda c: c.server_info(),
    "put_many": lambda c: c.queue("q").put_many([b"1"]),
    "producer": lambda c: produce(c.queue("q")),
    "run": lambda c: c.queue("q").run(nothing),
    "run by calls": lambda c: c.queue("q").run(nothing, by="calls"),
    "describe": lambda c: c.queue("q").describe(),
    "pause": lambda c: c.queue("q").pause(),
}

async def main():
    for opened, begin in OPENED.items():
        for name, use in BEGUN.items():
            client = headway.connect()
            if opened:
                await begin(client)
            await client.close()
            try:
                await use(client)
            except headway.ClientClosed:
                continue
            raise SystemExit(f"{name} behind {opened}")

asyncio.run(main())
"""


async def test_use_behind_the_close_does_not_end_the_process(service: FakeService, made: FakeQueue) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BEHIND_CLOSE),
        env={**os.environ, "HEADWAY_ADDRESS": service.address},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, said.decode()) == (0, "")


async def _first(answers: Any) -> None:
    async with aclosing(answers) as open_ones:
        await anext(open_ones)


@pytest.mark.parametrize(
    "lasting",
    [
        lambda queue: _first(queue.watch("a")),
        lambda queue: queue.wait_for("a"),
        lambda queue: _first(queue.watch_queue()),
        lambda queue: _first(queue.watch_blocked("me")),
        lambda queue: _first(queue.redrive()),
        lambda queue: _first(watch(queue.client.connection, "q", ["a"])),
        lambda queue: _first(queue.client.connection.stream(queue.client.connection.queues.WatchQueue, None)),
    ],
    ids=["watch", "wait_for", "watch_queue", "watch_blocked", "redrive", "core", "stream"],
)
async def test_whatever_lasts_is_refused_behind_the_close(
    queue: headway.Queue, lasting: Callable[[headway.Queue], Any]
) -> None:
    await queue.describe()
    await queue.client.server_info()  # both stubs are there
    await queue.client.close()
    with pytest.raises(headway.ClientClosed):
        await lasting(queue)


@pytest.mark.parametrize("by", ["lease", "run"])
async def test_what_is_held_by_calls_goes_back_at_no_cost(service: FakeService, made: FakeQueue, by: str) -> None:
    holds, may_end = asyncio.Event(), asyncio.Event()
    client = headway.connect(service.address)
    queue = client.queue("q")

    async def hold(lease: headway.Lease | None) -> None:
        assert lease is not None
        holds.set()
        await may_end.wait()
        assert lease.is_lost

    async def in_a_block() -> None:
        async with queue.lease() as lease:
            await hold(lease)

    await queue.put(b"1")
    async with asyncio.timeout(DEADLINE_SECONDS):
        task = asyncio.create_task(in_a_block() if by == "lease" else queue.run(hold, by="calls"))
        await holds.wait()
        await client.close()
        assert not made.leased
        assert [held.attempt for held in made.line] == [1]
        may_end.set()
        with pytest.raises(headway.ClientClosed):
            await task
    assert not made.acked
    assert not client.held


async def test_what_is_being_acked_at_the_end_of_its_block_goes_back_at_no_cost(
    service: FakeService, made: FakeQueue
) -> None:
    client = headway.connect(service.address)
    queue = client.queue("q")

    async def in_a_block() -> None:
        async with queue.lease():
            pass

    await queue.put(b"1")
    service.fail_next("Ack", Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE"), times=100)
    async with asyncio.timeout(DEADLINE_SECONDS):
        task = asyncio.create_task(in_a_block())
        await service.wait_for(lambda: service.requests("Ack"))
        await client.close()
        with pytest.raises(headway.ClientClosed):
            await task
    assert [held.attempt for held in made.line] == [1]
    assert not made.leased
    assert not client.held
