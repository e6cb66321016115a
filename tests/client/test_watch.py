"""Watching: what is told of messages and queues, in which order, and what a broken stream changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway.v1 import queue_service_pb2 as pb

CUT = Failure(code=grpc.StatusCode.UNAVAILABLE)


async def _seen(updates: AsyncIterator[headway.Update]) -> list[headway.Update]:
    async with asyncio.timeout(30):
        return [update async for update in updates]


def _brief(update: headway.Update) -> str:
    match update:
        case headway.Waiting():
            return f"{update.id} {update.position}/{update.length}{' back' if update.moved_back else ''}"
        case headway.Leased():
            return f"{update.id} attempt {update.attempt} {update.progress} {update.note}".rstrip()
        case headway.Delayed():
            return f"{update.id} delayed"
        case headway.Finished():
            return f"{update.id} {update.outcome}"


async def _next(updates: AsyncIterator[headway.Update]) -> str:
    async with asyncio.timeout(30):
        return _brief(await anext(updates))


async def test_life_of_a_message_is_told(service: FakeService, queue: headway.Queue) -> None:
    await queue.put_many([headway.Message(id=name, payload=b"1") for name in ("first", "mine")])
    async with aclosing(queue.watch("mine")) as updates:
        assert await _next(updates) == "mine 2/2"
        first = (await queue.get()).deliveries[0]
        assert await _next(updates) == "mine 1/1"
        await queue.delay([first.lease], timedelta(0))
        assert await _next(updates) == "mine 2/2 back"
        await queue.withdraw(["first"])
        assert await _next(updates) == "mine 1/1"
        async with queue.lease() as lease:
            assert lease is not None
            assert await _next(updates) == "mine attempt 1 None"
            await lease.progress(0.4, "resize")
            assert await _next(updates) == "mine attempt 1 0.4 resize"
            await lease.extend(note="upload")
            assert await _next(updates) == "mine attempt 1 0.4 upload"
            await lease.delay(timedelta(hours=1))
        assert await _next(updates) == "mine delayed"
        await service.release_delayed("q")
        assert await _next(updates) == "mine 1/1"
        async with queue.lease() as lease:
            assert lease is not None
            assert await _next(updates) == "mine attempt 2 None"
            await lease.ack(b"42")
        end = await anext(updates)
        assert isinstance(end, headway.Finished)
        assert (end.outcome, end.result) == (headway.Outcome.DONE, b"42")
        with pytest.raises(StopAsyncIteration):
            await anext(updates)
    await service.wait_for(lambda: not service.live_streams)


async def test_hints_are_spans_and_the_eta_may_not_be_known(queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"1", id="a")
    assert (await _first_waiting(queue)).eta == headway.Eta(known=False)
    made.eta_seconds = 1.5
    known = headway.Eta(known=True, p50=timedelta(seconds=1.5), p90=timedelta(seconds=4.5))
    told = await _first_waiting(queue)
    assert (told.eta, told.poll_min, told.poll_max) == (known, timedelta(seconds=1), timedelta(seconds=9))


async def _first_waiting(queue: headway.Queue) -> headway.Waiting:
    async with aclosing(queue.watch("a")) as updates:
        first = await anext(updates)
    assert isinstance(first, headway.Waiting)
    return first


async def test_watch_ends_when_all_are_finished(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    made.outcomes = {"w": "WITHDRAWN", "e": "EXPIRED"}
    await queue.put(b"1", id="d")
    await service.bury("q", "d")
    updates = await _seen(queue.watch("w", "e", "d", "never"))
    assert [_brief(each) for each in updates] == ["w WITHDRAWN", "e EXPIRED", "d DEAD", "never UNKNOWN"]
    assert updates[2].cause == "it broke"  # type: ignore[union-attr]
    assert updates[3].as_of is None
    assert await _seen(queue.watch()) == []


async def test_broken_stream_is_followed_by_another_for_the_rest(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([headway.Message(id=name, payload=b"1") for name in "abc"])
    async with aclosing(queue.watch("a", "b", "c")) as updates:
        assert [await _next(updates) for _ in "abc"] == ["a 1/3", "b 2/3", "c 3/3"]
        await queue.withdraw(["a"])
        assert [await _next(updates) for _ in "abc"] == ["a WITHDRAWN", "b 1/2", "c 2/2"]
        service.fail_next("WatchPosition", CUT, times=3)
        await service.break_streams()
        rest = asyncio.create_task(_seen(updates))
        await service.wait_for(lambda: len(service.requests("WatchPosition")) >= 5)
        await queue.ack([each.lease for each in (await queue.get(2)).deliveries], result=b"done")
        ends = [each for each in await rest if isinstance(each, headway.Finished)]
    assert [(end.id, end.result) for end in ends] == [("b", b"done"), ("c", b"done")]
    assert list(service.requests("WatchPosition")[-1].messages.ids) == ["b", "c"]


def _at(second: int, sequence: int, **event: object) -> pb.WatchPositionResponse:
    answer = pb.WatchPositionResponse(sequence=sequence, **event)  # type: ignore[arg-type]
    answer.as_of.FromDatetime(datetime(2030, 1, 1, 0, 0, second, tzinfo=UTC))
    return answer


def _waits(position: int, message_id: str = "a") -> pb.Position:
    return pb.Position(id=message_id, position=position, length=9, state=pb.STATE_WAITING)


async def test_nothing_older_is_told_behind_something_newer(service: FakeService, queue: headway.Queue) -> None:
    done = pb.Finished(id="a", outcome=pb.OUTCOME_DONE)
    service.plays = [
        [
            _at(10, 1, position=_waits(5)),
            _at(11, 1, position=_waits(6)),  # not a new number
            _at(9, 2, position=_waits(7)),  # a new number: by a clock that went back
            _at(12, 3, position=_waits(4)),
            _at(11, 4, position=_waits(3, "b")),  # of another message: newer than nothing
        ],
        [_at(11, 1, position=_waits(8)), _at(13, 2, position=_waits(5)), _at(5, 3, finished=done)],
        [_at(14, 1, finished=done), _at(14, 2, finished=pb.Finished(id="b", outcome=pb.OUTCOME_DEAD))],
    ]
    seen = await _seen(queue.watch("a", "b"))
    told = ["a 5/9", "a 7/9", "a 4/9", "b 3/9", "a 5/9 back", "a DONE", "b DEAD"]
    assert [_brief(each) for each in seen] == told


async def test_moving_back_is_what_the_service_says_and_where_a_stream_broke_what_the_position_says(
    service: FakeService, queue: headway.Queue
) -> None:
    """What was delayed, without being told so, stands at the tail: the service knows that this is no moving back."""
    back = pb.Position(id="a", position=6, length=9, state=pb.STATE_WAITING, moved_back=True)
    done = pb.Finished(id="a", outcome=pb.OUTCOME_DONE)
    service.plays = [
        [_at(1, 1, position=_waits(3)), _at(2, 2, position=_waits(5)), _at(3, 3, position=back)],
        [_at(4, 1, position=_waits(7)), _at(5, 2, position=_waits(8)), _at(6, 3, finished=done)],
    ]
    seen = await _seen(queue.watch("a"))
    assert [_brief(each) for each in seen] == ["a 3/9", "a 5/9", "a 6/9 back", "a 7/9 back", "a 8/9", "a DONE"]


async def test_all_is_told_on_when_the_clock_of_the_store_went_back(service: FakeService, queue: headway.Queue) -> None:
    done = pb.Finished(id="a", outcome=pb.OUTCOME_DONE)
    service.plays = [
        [_at(50, 1, position=_waits(3)), _at(20, 2, position=_waits(2)), _at(21, 3, position=_waits(1))],
        [_at(10, 1, leased=pb.Leased(id="a", attempt=1)), _at(11, 2, finished=done)],
    ]
    seen = await _seen(queue.watch("a"))
    assert [_brief(each) for each in seen] == ["a 3/9", "a 2/9", "a 1/9", "a attempt 1 None", "a DONE"]


async def test_deleted_queue_ends_its_messages(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1", id="a")
    async with aclosing(queue.watch("a")) as updates:
        await anext(updates)
        await queue.delete()
        assert await _next(updates) == "a DELETED"


async def test_queue_deleted_while_nobody_could_tell_ends_its_messages(
    service: FakeService, queue: headway.Queue
) -> None:
    service.plays = [[_at(1, 1, position=_waits(1))]]
    async with aclosing(queue.watch("a")) as updates:
        await anext(updates)
        await queue.delete()
        assert await _next(updates) == "a DELETED"


async def test_watch_of_no_queue_raises(client: headway.Client) -> None:
    with pytest.raises(headway.QueueNotFound):
        await _seen(client.queue("nothing").watch("a"))


@pytest.mark.parametrize("silently", [False, True])
async def test_service_that_never_answers_is_an_error(service: FakeService, made: FakeQueue, silently: bool) -> None:
    failure = Failure(code=grpc.StatusCode.UNAVAILABLE, is_silent=silently)
    service.fail_next("WatchPosition", failure, times=50)
    async with headway.connect(service.address, call_timeout=timedelta(milliseconds=400)) as client:
        with pytest.raises((headway.Unavailable, headway.DeadlineExceeded)):
            await _seen(client.queue("q").watch("a"))
    await service.wait_for(lambda: not service.live_streams)


async def test_leaving_an_attended_watch_withdraws_what_waits(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([headway.Message(id=name, payload=b"1") for name in "ab"])
    async with aclosing(queue.watch("a", "b", attended=True)) as updates:
        await anext(updates)
        await queue.get()
    await service.wait_for(lambda: made.outcomes)
    assert made.outcomes == {"b": "WITHDRAWN"}
    assert made.lease_of("a")


async def test_watch_that_is_cancelled_leaves_nothing_behind(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1", id="a")
    watching = asyncio.create_task(_seen(queue.watch("a")))
    counting = asyncio.create_task(_count(queue))
    await service.wait_for(lambda: service.live_streams == 2)
    for task in (watching, counting):
        task.cancel()
    await asyncio.wait([watching, counting])
    assert watching.cancelled()
    assert counting.cancelled()
    await service.wait_for(lambda: not service.live_streams)


async def _count(queue: headway.Queue) -> int:
    return len([each async for each in queue.watch_queue()])


async def test_wait_for_answers_the_end(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1", id="a")
    waiting = asyncio.create_task(queue.wait_for("a"))
    await service.wait_for(lambda: service.live_streams)
    await queue.ack([(await queue.get()).deliveries[0].lease], result=b"42")
    async with asyncio.timeout(30):
        end = await waiting
    assert (end.outcome, end.result) == ("DONE", b"42")
    with pytest.raises(headway.MessageNotFound):
        await queue.wait_for("never put")


async def test_numbers_of_a_queue_are_told_as_they_change(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with asyncio.timeout(30), aclosing(queue.watch_queue(interval=timedelta(milliseconds=200))) as numbers:
        assert (await anext(numbers)).queue.counts.length == 0
        made.eta_seconds = 2
        await queue.put(b"1")
        told = await anext(numbers)
        assert (told.queue.counts.length, told.eta.p50) == (1, timedelta(seconds=2))
        await service.break_streams()
        assert (await anext(numbers)).as_of >= told.as_of
        await queue.delete()
        with pytest.raises(headway.QueueDeleted):
            await anext(numbers)
    assert service.requests("WatchQueue")[0].interval.ToMilliseconds() == 200


async def test_numbers_of_a_queue_are_told_on_when_the_clock_of_the_store_went_back(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with asyncio.timeout(30), aclosing(queue.watch_queue()) as numbers:
        first = await anext(numbers)
        service.clock_back = timedelta(hours=1)
        await queue.put(b"1")
        told = await anext(numbers)
        assert (told.queue.counts.length, told.as_of < first.as_of) == (1, True)
        service.clock_back = timedelta(hours=2)
        await service.break_streams()
        assert (await anext(numbers)).as_of < told.as_of
