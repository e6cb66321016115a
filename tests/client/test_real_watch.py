"""Watching through the client and the command line, with a real service."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest
import pytest_asyncio

import headway
from client.conftest import CommandLine
from harness import ServiceProcess, StoreServer

PATIENCE_SECONDS = 60


@pytest_asyncio.fixture
async def line(real: ServiceProcess) -> AsyncIterator[headway.Queue]:
    """A queue of the real service, on which a message is dead after its first failure."""
    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(real.address) as client:
        queue = client.queue("seen")
        await queue.create(max_attempts=1)
        yield queue


async def _until(updates: AsyncIterator[headway.Update], kind: type[headway.Update]) -> headway.Update:
    async for update in updates:
        if isinstance(update, kind):
            return update
    raise AssertionError(f"it ended without {kind}")


async def test_life_of_a_message_is_told(line: headway.Queue) -> None:
    await line.put_many([headway.Message(id=name, payload=b"1") for name in ("first", "mine")])
    async with aclosing(line.watch("mine")) as updates:
        place = await _until(updates, headway.Waiting)
        assert isinstance(place, headway.Waiting)
        assert (place.position, place.length) == (2, 2)
        assert timedelta(0) < place.poll_min < place.poll_max
        leases = [line.hold(each, lease=timedelta(seconds=30)) for each in (await line.get(2)).deliveries]
        assert (await _until(updates, headway.Leased)).id == "mine"
        await leases[1].progress(0.5, "half")
        work = await _until(updates, headway.Leased)
        assert isinstance(work, headway.Leased)
        assert (work.attempt, work.progress, work.note) == (1, 0.5, "half")
        await leases[1].ack(b"42")
        end = await _until(updates, headway.Finished)
        assert isinstance(end, headway.Finished)
        assert (end.outcome, end.result) == (headway.Outcome.DONE, b"42")
    await leases[0].delay(reason="it broke")
    assert (await line.wait_for("first")).outcome is headway.Outcome.DEAD
    assert (await line.wait_for("mine")).result == b"42"  # remembered
    with pytest.raises(headway.MessageNotFound):
        await line.wait_for("never put")


async def test_end_of_an_attended_watch_withdraws(line: headway.Queue) -> None:
    await line.put(b"1", id="a")
    async with aclosing(line.watch("a", attended=True)) as updates:
        await _until(updates, headway.Waiting)
    assert (await line.wait_for("a")).outcome is headway.Outcome.WITHDRAWN


async def test_watch_goes_on_with_the_next_process(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]
) -> None:
    first = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    second = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    addresses = ",".join(each.address for each in (first, second))
    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(f"ipv4:{addresses}") as client:
        queue = client.queue("seen")
        await queue.create()
        await queue.put(b"1", id="a")
        async with aclosing(queue.watch("a")) as one, aclosing(queue.watch("a")) as other:  # one on each process
            await _until(one, headway.Waiting)
            await _until(other, headway.Waiting)
            ends = asyncio.gather(*(_until(each, headway.Finished) for each in (one, other)))
            first.kill()
            async with queue.lease(wait=timedelta(seconds=5)) as lease:
                assert lease is not None
            told = await ends
    assert [each.outcome for each in told if isinstance(each, headway.Finished)] == [headway.Outcome.DONE] * 2


async def test_numbers_of_a_queue_are_told_as_they_change(line: headway.Queue) -> None:
    async with aclosing(line.watch_queue(interval=timedelta(milliseconds=100))) as numbers:
        assert (await anext(numbers)).queue.counts.length == 0
        await line.put(b"1")
        async for told in numbers:
            if told.queue.counts.length == 1:
                break


async def test_command_line_watches_and_shows_queues(line: headway.Queue, real: ServiceProcess) -> None:
    shell = CommandLine(real.address)
    await line.put(b"1", id="a")
    process = await shell.start("watch", "seen", "a")
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"a: number 1 of 1")
    await line.ack([(await line.get()).deliveries[0].lease], result=b"42")
    finished = await shell.finish(process)
    assert (finished.code, finished.out.splitlines()[-1]) == (0, b"a: done: 42")
    shown = await shell.run("--json", "top", "--once")
    assert json.loads(shown.out)["queue"]["counts"]["acked"] == 1


async def test_a_blocked_producer_sees_its_place(line: headway.Queue) -> None:
    await line.update(bound=1)
    await line.put(b"1")
    wait = timedelta(seconds=PATIENCE_SECONDS)
    async with aclosing(line.watch_blocked("me")) as places:
        assert (await anext(places)).position == 0
        putting = asyncio.create_task(line.put(b"2", wait=wait, producer="me"))
        place = await anext(places)
        assert (place.producer, place.position, place.length) == ("me", 1, 1)
        await line.get()
        await putting
        assert (await anext(places)).position == 0
        await line.close()
        with pytest.raises(StopAsyncIteration):
            await anext(places)


async def test_command_line_tells_who_waits_for_room_where_it_stands(line: headway.Queue, real: ServiceProcess) -> None:
    shell = CommandLine(real.address)
    await line.update(bound=1)
    await line.put(b"1")
    one = await shell.start("put", "seen", "2", "--wait", "1m", "--show-place")
    assert one.stderr is not None
    assert await one.stderr.readline() == b"headway: number 1 of 1 waiting for room\n"
    other = await shell.start("--json", "put", "seen", "3", "--wait", "1m", "--show-place")
    assert other.stderr is not None
    told = json.loads(await other.stderr.readline())
    assert (told["position"], told["length"]) == (2, 2)
    await line.get()
    assert json.loads(await other.stderr.readline())["position"] == 1
    await line.get()
    for process in (one, other):
        assert (await shell.finish(process)).code == 0
