"""Standing in line through the client and the command line, with two real services on one store."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

import headway
from harness import ServiceProcess, StoreServer, eventually
from harness.stores import free_port

PATIENCE_SECONDS = 60
COMMAND = Path(sys.executable).with_name("headway")


@pytest.fixture
def services(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]
) -> tuple[ServiceProcess, ServiceProcess]:
    url = fresh_store_server.url
    # An address that a restart does not change.
    second = make_service(HEADWAY_REDIS_URL=url, HEADWAY_LISTEN=f"127.0.0.1:{free_port()}")
    return make_service(HEADWAY_REDIS_URL=url), second


@pytest_asyncio.fixture
async def lines(services: tuple[ServiceProcess, ServiceProcess]) -> AsyncIterator[tuple[headway.Queue, headway.Queue]]:
    """One queue with one slot, through two services."""
    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
        first, second = [
            (await stack.enter_async_context(headway.connect(service.address))).queue("turns") for service in services
        ]
        await first.create(limit=1, place_grace=timedelta(seconds=60))
        yield first, second


async def test_turns_go_round_over_services(lines: tuple[headway.Queue, headway.Queue]) -> None:
    first, second = lines
    await first.put_many([headway.Message(payload=b"%d" % number) for number in range(3)])
    async with first.stand() as holder:
        (lease,) = await holder.turn()
        async with second.stand() as waiter:
            told = await anext(aiter(waiter))
            assert isinstance(told, headway.Place)
            assert (told.position, told.length, told.limit) == (1, 1, 1)
            await lease.ack()
            (lease,) = await waiter.turn()
            assert lease.payload == b"1"
            assert await holder.turn() == ()
    # The block has given back what was not settled, and an attempt was not spent.
    delivery = (await first.get(wait=timedelta(seconds=5))).deliveries[0]
    assert (delivery.message.payload, delivery.attempt) == (b"1", 1)


async def test_a_broken_stream_comes_back_to_its_place(
    lines: tuple[headway.Queue, headway.Queue], services: tuple[ServiceProcess, ServiceProcess]
) -> None:
    first, second = lines
    async with second.stand() as early:
        before = await anext(aiter(early))
        async with first.stand() as late:
            await eventually(lambda: late.place is not None)
            services[1].stop()  # it says where to come back to before it goes
            services[1].start()
            await eventually(lambda: early.place is not before, within=40)
            assert early.place is not None
            assert early.place.position == 1
            await first.put(b"for the first in line")
            (lease,) = await early.turn()
            assert lease.payload == b"for the first in line"


async def test_the_shell_locks_with_it(services: tuple[ServiceProcess, ServiceProcess], tmp_path: Path) -> None:
    """As many at once as there are slots, and not one more."""
    log = tmp_path / "log"
    script = f"echo in >> {log}; sleep 0.5; echo out >> {log}"

    async def lock(service: ServiceProcess) -> int:
        process = await asyncio.create_subprocess_exec(
            COMMAND, "--address", service.address, "stand", "lock", "--slots", "1", "--quiet", "--", "sh", "-c", script
        )
        return await process.wait()

    async with asyncio.timeout(PATIENCE_SECONDS):
        codes = await asyncio.gather(*(lock(services[number % 2]) for number in range(4)))
    assert codes == [0, 0, 0, 0]
    assert log.read_text().split() == ["in", "out"] * 4
