"""Standing in the consumer line: places, turns, what leaving gives back, and what a broken stream changes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import grpc
import pytest

import headway
from client.conftest import client_tasks
from client.fake_service import Failure, FakeQueue, FakeService
from headway.core import connecting
from headway.v1.message_pb2 import Settled


@pytest.fixture(autouse=True)
async def nothing_left(service: FakeService) -> AsyncIterator[None]:
    yield
    assert not client_tasks()
    async with asyncio.timeout(30):
        await service.wait_for(lambda: not service.live_streams)


async def _place(stand: headway.Stand) -> tuple[int, int]:
    async with asyncio.timeout(30):
        told = await anext(stand)
    assert isinstance(told, headway.Place)
    return told.position, told.length


async def _turn(stand: headway.Stand) -> list[headway.Lease]:
    async with asyncio.timeout(30):
        return list(await stand.turn())


async def test_service_that_is_away_behind_a_lost_place_is_waited_for(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    """A new place is taken then, which is no beginning: that ends when the service does not answer."""
    lost = Failure(code=grpc.StatusCode.NOT_FOUND, reason="PLACE_LOST")
    away = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE")
    async with asyncio.timeout(30), queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        queue.client.connection.call_seconds = 0.2
        service.failures["WatchPosition"] = [lost, *[away] * 6]
        await service.break_streams()
        assert await _place(stand) == (1, 1)
        assert not service.failures["WatchPosition"]


async def test_place_is_told_until_the_turn_comes(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    made.eta_seconds = 2
    async with queue.stand(consumer="one") as first, queue.stand(consumer="two") as second:
        assert client_tasks()
        assert await _place(first) == (1, 1)
        await service.wait_for(lambda: len(made.waiters) == 2)
        assert await _place(second) == (2, 2)
        assert second.place is not None
        assert (second.place.eta.p50, second.place.moved_back) == (timedelta(seconds=2), False)
        await queue.put(b"for the first")
        (lease,) = await _turn(first)
        assert lease.payload == b"for the first"
        assert await _place(second) == (1, 1)
        await lease.ack()
        assert await _turn(first) == []
        assert (first.leases, first.place) == ((), None)
    assert [m.payload for m in made.acked] == [b"for the first"]
    assert [r.stand.consumer for r in service.requests("WatchPosition")] == ["one", "two"]
    await service.wait_for(lambda: not made.waiters)


async def test_turn_brings_as_many_as_were_asked_for(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.stand(max_messages=2, lease=timedelta(seconds=7)) as stand:
        leases = await _turn(stand)
        assert [lease.payload for lease in leases] == [b"1", b"2"]
        assert list(stand.leases) == leases
        await leases[0].ack()
    request = service.requests("WatchPosition")[0].stand
    assert (request.max_messages, request.lease.ToSeconds()) == (2, 7)
    assert [held.message.payload for held in made.line] == [b"2", b"3"]
    assert all(delay.keep_attempt for delay in service.requests("Delay"))


async def test_leaving_the_block_gives_up_the_place(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
    await service.wait_for(lambda: not made.waiters)


async def test_cancelled_block_gives_back_at_no_cost(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1")
    holds = asyncio.Event()

    async def hold() -> None:
        async with queue.stand() as stand:
            await stand.turn()
            holds.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await holds.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await service.wait_for(lambda: made.line and not made.leased)
    assert made.line[0].attempt == 1


@pytest.mark.parametrize("turns", range(8))
async def test_block_that_is_cancelled_again_while_it_ends_leaves_nothing_behind(
    service: FakeService, queue: headway.Queue, made: FakeQueue, turns: int
) -> None:
    await queue.put(b"1")
    ends = asyncio.Event()

    async def hold() -> None:
        async with queue.stand(lease=timedelta(hours=1)) as stand:
            await stand.turn()
            ends.set()

    task = asyncio.create_task(hold())
    await ends.wait()
    for _ in range(turns):  # of the loop: the block is about to end, or ends
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await service.wait_for(lambda: made.line and not made.leased)
    assert not client_tasks()


async def test_turn_can_be_cut_short_and_asked_for_again(service: FakeService, queue: headway.Queue) -> None:
    async with queue.stand() as stand:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await stand.turn()
        await queue.put(b"1")
        (lease,) = await _turn(stand)
        await lease.ack()
    assert len(service.requests("WatchPosition")) == 1


async def test_lease_is_a_block_of_its_own(queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put_many([b"1", b"2"])
    async with queue.stand(keep_standing=True) as stand:
        async with (await _turn(stand))[0] as lease:
            assert lease.payload == b"1"
        with pytest.raises(ZeroDivisionError):
            async with (await _turn(stand))[0]:
                raise ZeroDivisionError
    assert [m.payload for m in made.acked] == [b"1"]
    assert made.reasons == ["ZeroDivisionError"]


async def test_keeping_standing_brings_turn_after_turn_on_one_stream(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()
    seen = []
    async with asyncio.timeout(30), queue.stand(keep_standing=True) as stand:
        async for told in stand:
            if isinstance(told, headway.Granted):
                seen += [lease.payload for lease in told.leases]
                await told.leases[0].ack()
    assert seen == [b"1", b"2", b"3"]
    assert len(service.requests("WatchPosition")) == 1
    assert len(made.acked) == 3


async def test_standing_goes_on_behind_what_could_not_be_given_back(
    service: FakeService, queue: headway.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await queue.put(b"1")
    service.fail_next("Delay", Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN"), times=5)  # all tries
    async with asyncio.timeout(30), queue.stand(keep_standing=True) as stand:
        (lease,) = await _turn(stand)
        with pytest.raises(ZeroDivisionError):
            async with lease:
                raise ZeroDivisionError
        assert not stand.leases
        await service.lapse("q")
        (again,) = await _turn(stand)
        assert again.attempt == 2
        await again.ack()


async def test_lease_is_extended_while_it_is_held(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1")
    async with queue.stand(lease=timedelta(milliseconds=150)) as stand:
        await stand.turn()
        await service.wait_for(lambda: len(service.requests("Extend")) >= 2)


async def test_lease_whose_span_nobody_tells_is_extended_at_once(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.lease.FromSeconds(3600)
    made.is_foreign = True
    await queue.put(b"1")
    async with asyncio.timeout(30), queue.stand() as stand:
        (lease,) = await _turn(stand)
        await service.wait_for(lambda: service.requests("Extend"))
        assert not lease.is_lost
    assert service.requests("Extend")[0].lease.ToSeconds() == 3600


async def test_lost_lease_is_told(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1")
    async with queue.stand(lease=timedelta(milliseconds=150)) as stand:
        (lease,) = await _turn(stand)
        await service.lapse("q")
        async with asyncio.timeout(30):
            await lease.until_over()
        assert lease.is_lost
        assert not stand.leases


async def test_waiter_comes_back_to_its_place_within_the_grace(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.place_grace.FromSeconds(10)
    async with queue.stand(consumer="one") as first:
        assert await _place(first) == (1, 1)
        async with queue.stand(consumer="two") as second:
            assert await _place(second) == (2, 2)
            await service.break_streams()
            await service.wait_for(lambda: len(service.requests("WatchPosition")) == 4)
            await service.wait_for(lambda: len(made.present) == 2)
            await queue.put(b"1")
            assert len(await _turn(first)) == 1
    asked = {r.stand.consumer: r.stand.place for r in service.requests("WatchPosition")[2:]}
    assert asked == {"one": "place-1", "two": "place-2"}


async def test_lost_place_is_followed_by_a_new_one(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        made.waiters = ["somebody"]
        await service.break_streams()
        async with asyncio.timeout(30):
            told = await anext(stand)
        assert isinstance(told, headway.Place)
        assert (told.position, told.length, told.moved_back) == (2, 2, True)
    assert [r.stand.place for r in service.requests("WatchPosition")] == ["", "place-1", ""]


async def test_place_of_one_stream_moved_back_only_if_the_service_says_so(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        made.waiters.insert(0, "somebody")
        await service.notify()
        assert await _place(stand) == (2, 2)
        assert stand.place is not None
        assert not stand.place.moved_back


async def test_place_is_told_and_come_back_to_when_the_clock_of_the_store_went_back(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.place_grace.FromSeconds(10)
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        service.clock_back = timedelta(hours=1)
        made.waiters = ["somebody"]
        await service.break_streams()
        assert await _place(stand) == (2, 2)
        await service.break_streams()
        async with asyncio.timeout(30):
            await service.wait_for(lambda: len(service.requests("WatchPosition")) == 4)
    assert [r.stand.place for r in service.requests("WatchPosition")] == ["", "place-1", "", "place-2"]


async def test_broken_stream_is_found_to_have_lost_the_lease(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1")
    async with queue.stand() as stand:
        (lease,) = await _turn(stand)
        await service.break_streams()
        async with asyncio.timeout(30):
            await lease.until_over()
        assert lease.is_lost
        assert await _turn(stand) == []


async def test_lease_that_outlives_its_stream_is_kept(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.keeps_leases = True  # as when a service process dies and its successor knows the lease
    await queue.put(b"1")
    async with queue.stand() as stand:
        (lease,) = await _turn(stand)
        await service.break_streams()
        await service.wait_for(lambda: service.requests("Extend"))
        assert (await lease.ack()).settled == Settled.SETTLED_ACKED
        assert await _turn(stand) == []
    assert len(service.requests("WatchPosition")) == 1
    assert len(made.acked) == 1


@pytest.mark.parametrize("is_asked_after", [False, True])
async def test_ack_that_the_end_of_the_stream_overtakes_is_no_loss(
    service: FakeService, queue: headway.Queue, made: FakeQueue, is_asked_after: bool
) -> None:
    gate = service.hold_next("Ack")
    await queue.put(b"1")
    async with queue.stand() as stand:
        (lease,) = await _turn(stand)
        acking = asyncio.create_task(lease.ack())
        await service.wait_for(lambda: made.acked and not service.live_streams)
        if is_asked_after:  # by the client, which sees the end before the answer; else either may come first
            await service.wait_for(lambda: service.requests("Extend"))
        gate.set()
        assert (await acking).settled == Settled.SETTLED_ACKED
        assert not lease.is_lost
        assert await _turn(stand) == []


async def test_drained_queue_ends_the_line(queue: headway.Queue) -> None:
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        await queue.close()
        assert await _turn(stand) == []
        with pytest.raises(StopAsyncIteration):
            await anext(stand)


async def test_deleted_queue_ends_the_line_with_an_error(queue: headway.Queue) -> None:
    async with queue.stand() as stand:
        assert await _place(stand) == (1, 1)
        await queue.delete()
        with pytest.raises(headway.QueueDeleted):
            await _turn(stand)


async def test_standing_for_nothing_raises(client: headway.Client) -> None:
    with pytest.raises(headway.QueueNotFound):
        async with client.queue("nothing").stand() as stand:
            await stand.turn()
    with pytest.raises(headway.QueueNotFound):
        async with client.queue("nothing").stand(lease=timedelta(seconds=9)) as stand:
            await stand.turn()


async def test_service_that_is_away_from_the_start_is_an_error(service: FakeService, made: FakeQueue) -> None:
    service.fail_next("WatchPosition", Failure(code=grpc.StatusCode.UNAVAILABLE), times=50)
    async with headway.connect(service.address, call_timeout=timedelta(milliseconds=400)) as client:
        with pytest.raises(headway.Unavailable):
            async with client.queue("q").stand(lease=timedelta(seconds=9)) as stand:
                await stand.turn()


async def test_stand_outside_of_its_block_is_refused(queue: headway.Queue) -> None:
    stand = queue.stand()
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="async with"):
            await stand.turn()
        with pytest.raises(RuntimeError, match="async with"):
            await anext(stand)
