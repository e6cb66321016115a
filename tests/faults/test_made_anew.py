"""A queue is deleted and made anew while a service looks away: who waited for the old one is not served by the new, and
no call goes on in the new that began in the old."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from faults.conftest import Open, Serve
from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, queue_service_pb2
from wire.calls import SLACK_S, Keys, Line, payloads
from wire.conditions import consumers_wait, producers_wait
from wire.flows import Consuming
from wire.operators import admin_of, assert_sound, with_dead
from wire.streams import Standing

PREFIX = "__pressure__"
WAIT_MS = 60_000


@contextmanager
def looking_away(service: ServiceProcess) -> Iterator[None]:
    """What its calls wait for happens, and is over, before it looks again."""
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


@pytest.fixture
async def away(fresh_store_server: StoreServer, serve: Serve) -> ServiceProcess:
    """The service that looks away."""
    return await serve(fresh_store_server.url)


@pytest.fixture
async def there(away: ServiceProcess, open_line: Open) -> Line:
    """The queue through it."""
    return await open_line(away, "jobs")


@pytest.fixture
def keys(fresh_store_server: StoreServer) -> Iterator[Keys]:
    """The keys of the queue "jobs"."""
    with fresh_store_server.client() as client:
        yield Keys(client, PREFIX, "jobs")


async def deletes_behind_a_producer(line: Line, there: Line, keys: Keys) -> asyncio.Task[None]:
    """A Delete that has begun, and waits for the role of a foreign producer."""
    await line.create()
    keys.client.rpop(keys["producer_free"])
    deleting = asyncio.create_task(there.delete(wait_ms=10_000))
    await eventually(lambda: not keys.client.exists(keys["bound"]))
    return deleting


async def test_who_waited_is_told_that_it_was_deleted_and_the_new_one_knows_nobody(
    line: Line, there: Line, away: ServiceProcess
) -> None:
    full, full_there = Line(line.stub, "full", line.admin), Line(there.stub, "full")
    await line.create()
    await full.create(bound=1)
    await full.put(b"1")
    putting = asyncio.create_task(full_there.put(b"2", wait_ms=WAIT_MS))
    getting = asyncio.create_task(there.get(wait_ms=WAIT_MS))
    async with Standing(there) as standing, Consuming(there, 1) as consuming:
        await eventually(lambda: consumers_wait(line, 3))
        await eventually(lambda: producers_wait(full, 1))
        with looking_away(away):
            for one in (line, full):
                await one.delete()
                await one.create()
                await one.put(b"new")
        told = await standing.until(lambda told: told.HasField("finished"))
        assert told.finished.outcome == queue_service_pb2.OUTCOME_DELETED
        with refused("QUEUE_DELETED"):
            await putting
        with refused("QUEUE_DELETED"):
            await getting
        with refused("QUEUE_DELETED"):
            await consuming.ended()
    await eventually(lambda: consumers_wait(line, 0))
    await eventually(lambda: producers_wait(full, 0))
    for one in (line, full):
        assert payloads(await one.take(1)) == [b"new"]
        counts = await one.counts()
        assert (counts.accepted, counts.length, counts.leased) == (1, 0, 1)
        await assert_sound(one)


async def test_a_delete_that_waits_for_a_role_leaves_the_next_queue_alone(
    line: Line, there: Line, away: ServiceProcess, keys: Keys
) -> None:
    deleting = await deletes_behind_a_producer(line, there, keys)
    with looking_away(away):
        keys.client.lpush(keys["producer_free"], 0)
        await line.delete()
        await line.create()
        await line.put(b"new")
    await deleting
    assert payloads(await line.take()) == [b"new"]
    await assert_sound(line)


async def test_a_delete_that_waits_for_a_role_does_not_wait_for_the_end_of_the_next_queue(
    line: Line, there: Line, away: ServiceProcess, keys: Keys
) -> None:
    deleting = await deletes_behind_a_producer(line, there, keys)
    with looking_away(away):
        keys.client.lpush(keys["producer_free"], 0)
        await line.delete()
        await line.create()
        keys.client.rpop(keys["consumer_free"])
        with refused("ROLE_IN_USE"):
            await line.delete(wait_ms=0)
    await deleting
    assert keys.client.exists(keys["x:deleting"])
    keys.client.lpush(keys["consumer_free"], 0)
    await line.delete()


@pytest.mark.parametrize("is_made_anew", [True, False])
async def test_a_close_that_waits_for_a_role_is_told_of_the_end_and_leaves_the_next_queue_open(
    line: Line, there: Line, away: ServiceProcess, keys: Keys, is_made_anew: bool
) -> None:
    await line.create()
    keys.client.rpop(keys["producer_free"])
    keys.client.lpush(keys[""], b"foreign")
    closing = asyncio.create_task(there.close(wait_ms=10_000))
    await eventually(lambda: keys.client.hget(keys["x:meta"], "seen_len") == b"1")  # it has looked
    with looking_away(away):
        keys.client.lpush(keys["producer_free"], 0)
        await line.delete()
        if is_made_anew:
            await line.create()
    with refused("QUEUE_DELETED") as said:
        await closing
    assert said.metadata == {"queue": "jobs"}
    if is_made_anew:
        assert not (await line.describe()).closed


@pytest.mark.parametrize(
    ("to", "gone", "left"),  # of both then: how many are dead, and how many wait
    [("jobs", "jobs", [(2, 0), (0, 0)]), ("other", "jobs", [(2, 0), (0, 1)]), ("other", "other", [(2, 0), (2, 0)])],
    ids=["the queue", "the source", "the target"],
)
async def test_a_redrive_that_waits_for_room_goes_no_further_in_the_next_queue(
    line: Line, there: Line, away: ServiceProcess, *, to: str, gone: str, left: list[tuple[int, int]]
) -> None:
    lines = {name: Line(line.stub, name, line.admin) for name in ("jobs", "other")}
    await with_dead(line, 2)
    await lines["other"].create()
    await lines[to].update(bound=1)
    await lines[to].put(b"full")
    request = admin_service_pb2.RedriveRequest(queue="jobs", to_queue=to)
    answers = aiter(admin_of(there).Redrive(request, timeout=SLACK_S))
    told = await anext(answers)
    assert (told.redriven, told.remaining) == (0, 2)
    with looking_away(away):
        await lines[gone].delete()
        await with_dead(lines[gone], 2)
        await lines[to].update(bound=9)
    with refused("QUEUE_DELETED") as said:
        await anext(answers)
    assert said.metadata == {"queue": gone}
    counts = [await one.counts() for one in lines.values()]
    assert [(each.dead, each.length) for each in counts] == left
    for one in lines.values():
        await assert_sound(one)
