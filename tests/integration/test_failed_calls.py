"""What a failed call has used is free again at once, without the garbage collector: while the store is silent calls
fail by the hundred every second, and all of them are so old by then that the collector seldom looks at them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc.aio
import pytest

from harness import StoreServer, eventually
from headway.v1 import message_pb2, queue_service_pb2
from headwayd.app import Service
from headwayd.config.settings import Settings
from headwayd.domain.errors import HeadwayError
from headwayd.rpc.core.call import Call
from wire.calls import Line, line_at
from wire.conditions import consumers_wait

pytestmark = pytest.mark.any_store

CALLS = 50
OF_ITS_OWN = CALLS // 2  # errors at most that the service meets meanwhile, when it asks the store for itself
LONG_S = 30
NO_LEASE = "3zDz1ygTm50AAAAAAAAAAm5fslnVur2Afg9qX3zLhBUAAAAB"


async def produce(line: Line) -> None:
    stream = line.stub.Produce(timeout=LONG_S)
    messages = [message_pb2.Message(payload=b"x")]
    await stream.write(queue_service_pb2.ProduceRequest(queue=line.name, messages=messages))
    await stream.read()


async def consume(line: Line) -> None:
    stream = line.stub.Consume(timeout=LONG_S)
    start = queue_service_pb2.ConsumeStart(queue=line.name, credit=queue_service_pb2.Credit(messages=1))
    await stream.write(queue_service_pb2.ConsumeRequest(start=start))
    async for _ in stream:
        pass


WAYS: dict[str, Callable[[Line], Awaitable[object]]] = {
    "Put": lambda line: line.put(b"x"),
    "Put, waiting": lambda line: line.put(b"x", wait_ms=300),
    "Put, by itself": lambda line: line.put(b"x", all_or_nothing=True),
    "Get": lambda line: line.get(),
    "Get, waiting": lambda line: line.get(wait_ms=300),
    "Get, standing": lambda line: line.get(stand=True),
    "Ack": lambda line: line.ack(NO_LEASE),
    "Extend": lambda line: line.extend(NO_LEASE),
    "Describe": lambda line: line.describe(),
    "Produce": produce,
    "Consume": consume,
}


@pytest.fixture
async def line(
    fresh_store_server: StoreServer, connect: Callable[[str], grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Line]:
    """A queue through a service in this very process."""
    monkeypatch.setenv("HEADWAY_REDIS_URL", fresh_store_server.url)
    service = Service(Settings.load({"listen": ["127.0.0.1:0"], "shutdown_grace": "0s", "drain_delay": "0s"}))
    [address, *_] = await service.start()
    try:
        async with line_at(address, "jobs", connect) as line:
            await line.create(bound=1)
            await line.get()  # as on a queue that is in use: those that come now go together
            yield line
    finally:
        gc.enable()
        fresh_store_server.resume()
        await service.stop(asyncio.Event())


def left(kind: type) -> int:
    """How many there are of a kind."""
    return sum(issubclass(type(one), kind) for one in gc.get_objects())


async def nothing_is_left(calls: list[Awaitable[object]], code: grpc.StatusCode) -> None:
    """Waits until they have failed, all by this, and everything of them is free."""
    gc.collect()
    of_others = left(HeadwayError)  # of tests that this process ran before, say
    gc.disable()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [one.code() for one in ended if isinstance(one, grpc.aio.AioRpcError)] == [code] * CALLS
    del ended
    await eventually(lambda: left(Call) == 0)
    await eventually(lambda: left(HeadwayError) <= of_others + OF_ITS_OWN)


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_left_of_calls_that_failed_at_a_silent_store(
    line: Line, fresh_store_server: StoreServer, way: str
) -> None:
    fresh_store_server.pause()
    await nothing_is_left([WAYS[way](line) for _ in range(CALLS)], grpc.StatusCode.UNAVAILABLE)


async def test_nothing_is_left_of_waits_that_ended_because_the_store_fell_silent(
    line: Line, fresh_store_server: StoreServer
) -> None:
    waits = [asyncio.ensure_future(line.get(wait_ms=3_000)) for _ in range(CALLS)]
    await eventually(lambda: consumers_wait(line, CALLS))
    fresh_store_server.pause()
    await nothing_is_left([*waits], grpc.StatusCode.UNAVAILABLE)


async def test_nothing_is_left_of_puts_that_waited_for_room_in_vain(line: Line) -> None:
    await line.put(b"the one that it holds")
    puts = [line.put(b"x", wait_ms=300) for _ in range(CALLS)]
    await nothing_is_left([*puts], grpc.StatusCode.RESOURCE_EXHAUSTED)
