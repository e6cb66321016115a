"""The batching producer with a real service: room, restarts and bad wires; nothing lost, nothing twice, in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import pytest_asyncio

import headway
from harness import FaultProxy, ServiceProcess, StoreServer, eventually
from harness.stores import free_port

PATIENCE_SECONDS = 60
LONG = timedelta(minutes=10)


@pytest.fixture
def real(fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    # An address that a restart does not change.
    return make_service(HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_LISTEN=f"127.0.0.1:{free_port()}")


@pytest_asyncio.fixture
async def line(real: ServiceProcess) -> AsyncIterator[headway.Queue]:
    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(real.address) as client:
        queue = client.queue("line")
        await queue.create()
        yield queue


async def _payloads(queue: headway.Queue) -> list[bytes]:
    """Everything that waits, from the head on."""
    found: list[bytes] = []
    while deliveries := (await queue.get(1000)).deliveries:
        found += [each.message.payload for each in deliveries]
        await queue.ack([each.lease for each in deliveries])
    return found


async def _put(queue: headway.Queue, count: int) -> None:
    async with queue.producer(max_batch=20, patience=LONG) as producer:
        answers = [await producer.put_soon(b"%d" % n) for n in range(count)]
    assert len({answer.result().id for answer in answers}) == count


async def test_messages_of_many_tasks_are_put_once(line: headway.Queue) -> None:
    async with line.producer() as producer:
        told = await asyncio.gather(*(producer.put(b"%d" % n) for n in range(3000)))
    assert sorted(each.ticket for each in told) == list(range(1, 3001))
    assert await _payloads(line) == [b"%d" % n for n in range(3000)]


async def test_full_queue_holds_the_producer_back(line: headway.Queue) -> None:
    await line.update(bound=5)
    async with line.producer(max_batch=4, max_in_flight=2) as producer:
        putting = asyncio.create_task(_put_all(producer, 50))
        await eventually(lambda: _is_full(line))
        assert not putting.done()
        found: list[bytes] = []
        while len(found) < 50:
            got = (await line.get(3, wait=timedelta(seconds=5))).deliveries
            found += [each.message.payload for each in got]
            await line.ack([each.lease for each in got])
        await putting
    assert found == [b"%d" % n for n in range(50)]


async def _put_all(producer: headway.Producer, count: int) -> None:
    await asyncio.gather(*[await producer.put_soon(b"%d" % n) for n in range(count)])


async def _is_full(queue: headway.Queue) -> bool:
    return (await queue.describe()).counts.length == 5


async def test_restarts_of_the_service_lose_nothing_and_put_nothing_twice(
    real: ServiceProcess, line: headway.Queue
) -> None:
    put: list[bytes] = []
    is_enough = asyncio.Event()

    async def put_on(producer: headway.Producer) -> None:
        while not is_enough.is_set():
            payload = b"%d" % len(put)
            put.append(payload)
            await producer.put(payload)

    async with line.producer(max_batch=2, patience=LONG) as producer, asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(put_on(producer))
        for end in (real.stop, real.kill):
            count = len(put)
            await eventually(lambda: _has(line, count + 100), within=PATIENCE_SECONDS)  # noqa: B023 - awaited here
            await asyncio.to_thread(end)
            await asyncio.to_thread(real.start)
        count = len(put)
        await eventually(lambda: _has(line, count + 100), within=PATIENCE_SECONDS)
        is_enough.set()
    assert await _payloads(line) == put


async def _has(queue: headway.Queue, count: int) -> bool:
    try:
        return (await queue.describe()).counts.length >= count
    except headway.Unavailable:
        return False


async def test_broken_connections_lose_nothing_and_put_nothing_twice(real: ServiceProcess, line: headway.Queue) -> None:
    async with FaultProxy(int(real.address.rpartition(":")[2])) as wire:
        wire.drop_replies = 0.1
        async with headway.connect(f"127.0.0.1:{wire.port}") as client:
            putting = asyncio.create_task(_put(client.queue("line"), 2000))
            await eventually(lambda: _has(line, 1000), within=PATIENCE_SECONDS)
            wire.restore()
            await putting
    assert await _payloads(line) == [b"%d" % n for n in range(2000)]


async def test_message_that_is_refused_does_not_take_others_with_it(line: headway.Queue) -> None:
    async with line.producer() as producer:
        told = await asyncio.gather(
            producer.put(b"1"),
            producer.put(b"2", headers={"": "no key"}),
            producer.put(b"x" * 1024 * 1024),
            producer.put(b"3"),
            return_exceptions=True,
        )
    assert [type(each) for each in told[1:3]] == [headway.FieldInvalid, headway.TooLarge]
    assert await _payloads(line) == [b"1", b"3"]


async def test_deleted_queue_is_told_to_each_message(line: headway.Queue) -> None:
    async with line.producer() as producer:
        await producer.put(b"1")
        await line.delete()
        told = await asyncio.gather(producer.put(b"2"), producer.put(b"3"), return_exceptions=True)
    assert [type(each) for each in told] == [headway.QueueNotFound] * 2
