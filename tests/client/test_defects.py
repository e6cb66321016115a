"""What is no HeadwayError, as from a token that cannot be had, is told to whoever works and stands."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any, cast

import pytest

import headway
from client.conftest import client_tasks
from client.fake_service import FakeQueue, FakeService
from headway.core import Worker

HALF_A_SECOND = timedelta(milliseconds=500)
NO_SPAN = cast(timedelta, 30)


class _Token:
    """A token that can be had, until it breaks."""

    def __init__(self) -> None:
        self.is_broken = False
        self.failure_count = 0
        self.has_failed_often = asyncio.Event()

    def __call__(self) -> str:
        if self.is_broken:
            self.failure_count += 1
            if self.failure_count == 3:
                self.has_failed_often.set()
            raise ZeroDivisionError
        return "secret"


async def _nothing(lease: headway.Lease) -> None:
    """A handler that has nothing to do."""


async def test_run_raises_what_its_stream_met(service: FakeService, made: FakeQueue) -> None:
    token = _Token()
    token.is_broken = True
    async with headway.connect(service.address, token=token) as client, asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            await client.queue("q").run(_nothing)
    assert not client_tasks()


async def test_run_refuses_a_lease_that_is_no_span(queue: headway.Queue) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(TypeError):
            await queue.run(_nothing, lease=NO_SPAN)


async def test_work_raises_what_its_stream_met_behind_what_it_had(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    token = _Token()
    await queue.put(b"1")
    async with headway.connect(service.address, token=token) as client, aclosing(client.queue("q").work()) as leases:
        lease = await anext(leases)
        token.is_broken = True
        await service.break_streams()
        lease.end()
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(30):
                await anext(leases)


async def test_stand_raises_what_its_stream_met(service: FakeService, made: FakeQueue) -> None:
    token = _Token()
    token.is_broken = True
    async with (
        asyncio.timeout(30),
        headway.connect(service.address, token=token) as client,
        client.queue("q").stand(lease=timedelta(seconds=30)) as stand,
    ):
        with pytest.raises(ZeroDivisionError):
            await stand.turn()


async def test_watch_raises_the_timeout_of_a_token(service: FakeService, made: FakeQueue) -> None:
    def token() -> str:
        raise TimeoutError("no token in time")

    async with headway.connect(service.address, token=token) as client, aclosing(client.queue("q").watch("a")) as told:
        with pytest.raises(TimeoutError, match="no token in time"):
            await anext(told)


async def test_stand_refuses_a_lease_that_is_no_span(queue: headway.Queue) -> None:
    async with asyncio.timeout(30), queue.stand(lease=NO_SPAN) as stand:
        with pytest.raises(TypeError):
            await stand.turn()


async def test_lease_is_kept_alive_over_a_token_that_cannot_be_had(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    token = _Token()
    await queue.put(b"1")
    async with (
        asyncio.timeout(30),
        headway.connect(service.address, token=token) as client,
        client.queue("q").lease(lease=HALF_A_SECOND) as lease,
    ):
        assert lease is not None
        await _broken_for_a_while(token)
        await service.wait_for(lambda: service.requests("Extend"))
        assert not lease.is_lost
    assert "could not extend" in caplog.text
    assert len(made.acked) == 1


async def test_leases_of_a_worker_are_kept_alive_over_a_token_that_cannot_be_had(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream ends for that, but what is held is finished."""
    token = _Token()
    await queue.put(b"1")
    await queue.close()
    service.keeps_leases = True

    async def handle(lease: headway.Lease) -> None:
        await service.break_streams()
        await _broken_for_a_while(token)
        await service.wait_for(lambda: service.requests("Extend"))
        assert not lease.is_lost

    async with headway.connect(service.address, token=token) as client, asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            await client.queue("q").run(handle, lease=HALF_A_SECOND)
    assert "could not extend" in caplog.text
    assert len(made.acked) == 1


@pytest.mark.parametrize("prefetch", [0, 2])
async def test_what_was_handled_is_acked_behind_a_defect_that_passes(
    service: FakeService, queue: headway.Queue, made: FakeQueue, prefetch: int
) -> None:
    """It ends the worker, but the ack is tried again some times before."""
    token = _Token()
    await queue.put(b"1")
    service.keeps_leases = True

    async def handle(lease: headway.Lease) -> bytes:
        await service.break_streams()
        token.is_broken = True
        return b"done"

    async with headway.connect(service.address, token=token) as client, asyncio.timeout(30):
        run = asyncio.create_task(client.queue("q").run(handle, prefetch=prefetch, lease=timedelta(minutes=1)))
        await token.has_failed_often.wait()
        token.is_broken = False
        with pytest.raises(ZeroDivisionError):
            await run
    assert made.results == [b"done"]
    assert not client_tasks()


async def _broken_for_a_while(token: _Token) -> None:
    token.is_broken = True
    await token.has_failed_often.wait()
    token.is_broken = False


@pytest.mark.parametrize("is_core", [False, True], ids=["calls", "core"])
async def test_worker_by_calls_finishes_what_it_holds_when_its_token_cannot_be_had(
    service: FakeService, queue: headway.Queue, made: FakeQueue, is_core: bool
) -> None:
    token = _Token()
    await queue.put_many([b"long", b"short"])

    async def handle(lease: Any) -> None:
        if lease.delivery.message.payload == b"long":
            await token.has_failed_often.wait()
            token.is_broken = False
            return
        if is_core:
            await lease.ack()
        token.is_broken = True

    async with headway.connect(service.address, token=token) as client, asyncio.timeout(30):
        core = Worker(client.connection, "q", handle, concurrency=2, lease=HALF_A_SECOND)
        running = client.queue("q").run(handle, concurrency=2, lease=HALF_A_SECOND, by="calls")
        with pytest.raises(ZeroDivisionError):
            await (core.run() if is_core else running)
        running.close()
    assert sorted(message.payload for message in made.acked) == [b"long", b"short"]
    assert not made.leased
    assert not client_tasks()


@pytest.mark.parametrize("result", [None, b"done"])
async def test_worker_by_calls_does_not_try_for_ever_to_ack_without_a_token(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, result: bytes | None
) -> None:
    token = _Token()
    await queue.put(b"1")

    async def handle(lease: headway.Lease) -> bytes | None:
        token.is_broken = True
        return result

    async with headway.connect(service.address, token=token) as client, asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            await client.queue("q").run(handle, lease=timedelta(seconds=30), by="calls")
    assert "was handled, but its ack failed" in caplog.text
