"""Workers by calls where a service lets no call wait for long."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest

import headway
from client.fake_service import FakeService
from headway.core.errors import FieldInvalid

SHORT = timedelta(milliseconds=200)


def waits(service: FakeService) -> list[timedelta]:
    """How long each Get was to wait, of those that were to wait."""
    return [request.wait.ToTimedelta() for request in service.requests("Get") if request.HasField("wait")]


async def test_worker_waits_again_and_again_for_as_long_as_one_call_may(
    service: FakeService, queue: headway.Queue
) -> None:
    service.limits.max_wait.FromTimedelta(SHORT)
    handled: list[bytes] = []
    stop = asyncio.Event()

    async def handle(lease: headway.Lease) -> None:
        handled.append(lease.message.payload)
        stop.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(queue.run(handle, by="calls", stop=stop))
        await service.wait_for(lambda: len(waits(service)) >= 3)
        await queue.put(b"1")
    assert handled == [b"1"]
    assert max(waits(service)) == SHORT


async def test_iterating_waits_again_and_again_for_as_long_as_one_call_may(
    service: FakeService, queue: headway.Queue
) -> None:
    service.limits.max_wait.FromTimedelta(SHORT)
    async with asyncio.timeout(30), aclosing(queue.work(by="calls")) as work:
        first = asyncio.create_task(anext(work))
        await service.wait_for(lambda: len(waits(service)) >= 3)
        await queue.put(b"1")
        lease = await first
        assert lease.message.payload == b"1"
        await lease.ack()
    assert max(waits(service)) == SHORT


async def test_worker_ends_where_no_call_may_wait_at_all(service: FakeService, queue: headway.Queue) -> None:
    service.limits.max_wait.FromTimedelta(timedelta(0))

    async def handle(lease: headway.Lease) -> None:
        raise AssertionError(lease)

    async with asyncio.timeout(30):
        with pytest.raises(FieldInvalid):
            await queue.run(handle, by="calls")
