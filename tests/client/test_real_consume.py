"""Workers on a stream with a real service: everything is worked on, whatever breaks, and nothing stays behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest
import pytest_asyncio

import headway
from harness import FaultProxy, ServiceProcess, StoreServer, eventually
from harness.stores import free_port

PATIENCE_SECONDS = 60


@pytest.fixture
def real(fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    # An address that a restart does not change.
    return make_service(HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_LISTEN=f"127.0.0.1:{free_port()}")


@pytest_asyncio.fixture
async def line(real: ServiceProcess) -> AsyncIterator[headway.Queue]:
    """A queue whose leases do not lapse during a test: what is left behind stays there."""
    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(real.address) as client:
        queue = client.queue("line")
        await queue.create(lease=timedelta(hours=1))
        yield queue


class _Seen:
    """A handler that notes what it has seen."""

    def __init__(self) -> None:
        self.count: Counter[bytes] = Counter()

    async def __call__(self, lease: headway.Lease) -> bytes | None:
        await asyncio.sleep(0)
        self.count[lease.payload] += 1
        return lease.payload if lease.ticket % 3 == 0 else None


async def _has_acked(queue: headway.Queue, count: int) -> bool:
    try:
        return (await queue.describe()).counts.acked >= count
    except headway.Unavailable:
        return False


async def _is_leased(queue: headway.Queue, count: int) -> bool:
    return (await queue.describe()).counts.leased == count


async def _put(queue: headway.Queue, count: int) -> set[bytes]:
    payloads = [b"%d" % n for n in range(count)]
    await queue.put_many(payloads)
    return set(payloads)


@pytest.mark.parametrize("prefetch", [0, 50])
async def test_every_message_is_worked_on_once(line: headway.Queue, prefetch: int) -> None:
    payloads = await _put(line, 3000)
    await line.close()
    seen = [_Seen(), _Seen()]
    async with asyncio.TaskGroup() as group:
        for each in seen:
            group.create_task(line.run(each, concurrency=20, prefetch=prefetch))
    assert seen[0].count + seen[1].count == Counter(payloads)
    assert (await line.describe()).counts.acked == 3000
    assert not (await line.check()).findings


async def test_restarts_of_the_service_leave_nothing_undone(real: ServiceProcess, line: headway.Queue) -> None:
    payloads = await _put(line, 2000)
    await line.close()
    seen = _Seen()

    async def handle(lease: headway.Lease) -> bytes | None:
        if len(seen.count) in (500, 1000):  # somewhere in the middle a restart finds it busy
            await asyncio.wait_for(restarted[len(seen.count) // 500 - 1].wait(), PATIENCE_SECONDS)
        return await seen(lease)

    restarted = [asyncio.Event(), asyncio.Event()]
    working = asyncio.create_task(line.run(handle, concurrency=10, prefetch=10))
    for number, end in enumerate((real.stop, real.kill)):
        await eventually(lambda: _has_acked(line, 400 + 500 * number), within=PATIENCE_SECONDS)  # noqa: B023 - awaited
        await asyncio.to_thread(end)
        await asyncio.to_thread(real.start)
        restarted[number].set()
    await working
    assert set(seen.count) == payloads
    counts = (await line.describe()).counts
    assert (counts.acked, counts.leased, counts.length) == (2000, 0, 0)
    assert not (await line.check()).findings


async def test_broken_connections_leave_nothing_undone(real: ServiceProcess, line: headway.Queue) -> None:
    payloads = await _put(line, 300)
    await line.close()
    seen = _Seen()
    async with FaultProxy(int(real.address.rpartition(":")[2])) as wire:
        wire.drop_replies = 0.1
        async with headway.connect(f"127.0.0.1:{wire.port}") as client, asyncio.TaskGroup() as group:
            group.create_task(client.queue("line").run(seen, concurrency=4, prefetch=4))
            await eventually(lambda: _has_acked(line, 100), within=PATIENCE_SECONDS)
            wire.restore()
    assert set(seen.count) == payloads
    counts = (await line.describe()).counts
    assert (counts.acked, counts.leased, counts.length) == (300, 0, 0)
    assert not (await line.check()).findings


async def test_leaving_a_worker_leaves_nothing_leased(line: headway.Queue) -> None:
    await _put(line, 50)
    async with aclosing(line.work(concurrency=5, prefetch=10)) as leases:
        taken = [await anext(leases) for _ in range(3)]
    await eventually(lambda: _is_leased(line, 3))
    for lease in reversed(taken):
        await lease.release()
    task = asyncio.create_task(line.run(_never_ends, concurrency=5, prefetch=10))
    await eventually(lambda: _is_leased(line, 15))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: _is_leased(line, 0))
    assert [each.message.payload for each in await line.peek(50)] == [b"%d" % n for n in range(50)]
    assert (await line.get()).deliveries[0].attempt == 1


async def _never_ends(lease: headway.Lease) -> None:
    await asyncio.Event().wait()


async def test_what_the_service_refuses_does_not_end_the_stream(line: headway.Queue) -> None:
    await _put(line, 4)
    refused: list[type[BaseException]] = []

    async def handle(lease: headway.Lease) -> bytes:
        attempts: list[Callable[[], object]] = [
            lambda: lease.delay(timedelta(days=9999)),
            lambda: lease.delay(reason="x" * 1025),
            lambda: lease.extend(timedelta(days=9999)),
            lambda: lease.progress(2.0),
            lambda: lease.progress(0.5, "x" * 1025),
        ]
        if lease.payload == b"0":
            for each in attempts:
                with pytest.raises(headway.InvalidArgument) as caught:
                    await each()  # type: ignore[misc]
                refused.append(caught.type)
            return b"x" * 5000
        if lease.payload == b"3":
            stop.set()
        return b"fine"

    stop = asyncio.Event()
    await line.run(handle, stop=stop)
    assert len(refused) == 5
    counts = (await line.describe()).counts
    assert (counts.acked, counts.leased) == (3, 0)
    assert not (await line.check()).findings


async def test_lease_is_kept_alive_for_longer_than_its_span(line: headway.Queue) -> None:
    await _put(line, 6)
    stop = asyncio.Event()
    seen: list[tuple[bytes, int]] = []

    async def handle(lease: headway.Lease) -> None:
        seen.append((lease.payload, lease.attempt))
        until = lease.lapses_at + 0.6
        await eventually(lambda: _is_past(until), within=PATIENCE_SECONDS)
        assert not lease.is_lost
        if lease.payload == b"5":
            stop.set()

    await line.run(handle, concurrency=3, prefetch=3, lease=timedelta(seconds=1.8), stop=stop)
    assert sorted(seen) == [(b"%d" % n, 1) for n in range(6)]
    assert (await line.describe()).counts.acked == 6


async def _is_past(at: float) -> bool:
    return asyncio.get_running_loop().time() > at
