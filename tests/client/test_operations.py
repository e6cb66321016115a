"""What operators do with a queue: its dead, its checks, its pauses."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

import headway
from client.fake_admin import dead_message
from client.fake_service import Failure, FakeQueue, FakeService


@pytest.fixture
def graves(made: FakeQueue) -> FakeQueue:
    """A queue with five dead messages."""
    made.dead = [dead_message(f"d{number}") for number in range(5)]
    return made


async def test_dead_are_listed_through_all_pages(service: FakeService, queue: headway.Queue, graves: FakeQueue) -> None:
    seen = [dead async for dead in queue.dead()]
    assert [dead.message.id for dead in seen] == ["d0", "d1", "d2", "d3", "d4"]
    assert (seen[0].message.payload, seen[0].cause, seen[0].failures) == (b"body of d0", "attempts", 3)
    assert [dead.message.payload async for dead in queue.dead(without_payloads=True)] == [b""] * 5
    assert len(service.requests("ListDead")) == 6


async def test_leased_tells_who_works_on_what(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put_many([headway.Message(id=name) for name in "abc"])
    await queue.get(max_messages=3)
    assert [(one.id, one.consumer, one.attempt) for one in await queue.leased(2)] == [("a", "me", 1), ("b", "me", 1)]
    assert [request.max_messages for request in service.requests("ListLeased")] == [2]


async def test_redrive_tells_how_far_it_is(service: FakeService, queue: headway.Queue, graves: FakeQueue) -> None:
    told = [(each.redriven, each.remaining) async for each in queue.redrive(rate=7.5)]
    assert told[0] == (0, 5)
    assert told[-1] == (5, 0)
    assert [held.message.id for held in graves.line] == ["d0", "d1", "d2", "d3", "d4"]
    assert (service.requests("Redrive")[0].rate, list(service.requests("Redrive")[0].message_ids)) == (7.5, [])


async def test_redrive_takes_those_named_to_where_it_is_told(
    service: FakeService, queue: headway.Queue, graves: FakeQueue
) -> None:
    service.queues["other"] = other = FakeQueue("other", headway.Policy())
    told = [each async for each in queue.redrive(["d3", "nobody", "d1"], to_queue="other")]
    assert list(told[-1].not_found_ids) == ["nobody"]
    assert [held.message.id for held in other.line] == ["d1", "d3"]
    assert [dead.message.id for dead in graves.dead] == ["d0", "d2", "d4"]


async def test_redrive_of_no_ids_is_not_a_redrive_of_all(
    service: FakeService, queue: headway.Queue, graves: FakeQueue
) -> None:
    assert [each async for each in queue.redrive([])] == []
    assert not service.requests("Redrive")
    assert len(graves.dead) == 5


async def test_leaving_a_redrive_ends_it_and_another_goes_on(
    service: FakeService, queue: headway.Queue, graves: FakeQueue
) -> None:
    graves.policy.bound = 2
    async with aclosing(queue.redrive()) as progress:
        async for each in progress:
            if each.redriven == 2:
                break
    await service.wait_for(lambda: service.broken_off)
    assert len(graves.dead) == 3
    graves.policy.bound = 0
    told = [(each.redriven, each.remaining) async for each in queue.redrive()]
    assert told[-1] == (3, 0)
    assert len(graves.line) == 5


async def test_cancelled_redrive_ends_on_the_other_side(
    service: FakeService, queue: headway.Queue, graves: FakeQueue
) -> None:
    graves.policy.bound = 1

    async def put_back() -> None:
        async for _ in queue.redrive():
            pass

    task = asyncio.create_task(put_back())
    await service.wait_for(lambda: graves.line)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await service.wait_for(lambda: service.broken_off)


async def test_redrive_that_breaks_is_not_repeated(
    service: FakeService, queue: headway.Queue, graves: FakeQueue
) -> None:
    service.fail_next("Redrive", Failure(code=grpc.StatusCode.UNAVAILABLE, is_after=True))
    progress = queue.redrive()
    assert (await anext(progress)).redriven == 0
    with pytest.raises(headway.Unavailable):
        await anext(progress)
    assert len(service.requests("Redrive")) == 1


async def test_check_tells_what_is_wrong(queue: headway.Queue, made: FakeQueue) -> None:
    assert not (await queue.check()).findings
    made.findings = ["message 'a' is in two places"]
    assert list((await queue.check()).findings) == made.findings


async def test_paused_queue_is_resumed(queue: headway.Queue, made: FakeQueue) -> None:
    assert (await queue.pause()).paused
    assert not (await queue.resume()).paused


async def test_purge_and_repair_answer(queue: headway.Queue) -> None:
    await queue.put_many([b"1", b"2"])
    assert (await queue.repair()).findings
    assert (await queue.purge()).waiting == 2
