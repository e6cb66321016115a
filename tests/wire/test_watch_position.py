"""WatchPosition for messages: where each is, what happens to it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import grpc
import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import (
    EXTENDED,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SLACK_S,
    Keys,
    Line,
    Message,
    leases,
    now_ms,
    span,
)
from wire.watches import (
    DEAD_END,
    DELETED,
    DONE,
    EXPIRED,
    NOT_KNOWN,
    WAITING,
    WAITS_LATER,
    WITHDRAWN,
    positions,
    watching,
)


def named(count: int, first: int = 0) -> list[message_pb2.Message]:
    """Messages with the ids m<first>…"""
    return [Message(id=f"m{number}", payload=b"%d" % number) for number in range(first, first + count)]


async def extend(line: Line, lease: str, fraction: float, note: str = "") -> Sequence[message_pb2.SettleResult]:
    request = queue_service_pb2.ExtendRequest(
        queue=line.name, leases=[lease], progress=message_pb2.Progress(fraction=fraction, note=note)
    )
    return (await line.stub.Extend(request, timeout=SLACK_S)).results


# The first message.


async def test_first_message_tells_the_place_at_once(line: Line, keys: Keys) -> None:
    await line.create(limit=3)
    await line.put(*named(5))
    before = now_ms(keys.client)
    async with watching(line, "m3") as watched:
        told = await watched.next()
    place = told.position
    assert (place.id, place.position, place.length, place.limit, place.state) == ("m3", 4, 5, 3, WAITING)
    assert not place.moved_back
    assert told.sequence == 1
    assert before - 1 <= told.as_of.ToMilliseconds() <= now_ms(keys.client)
    assert 0 < place.poll_min.ToMilliseconds() < place.poll_max.ToMilliseconds()
    assert place.HasField("eta")


async def test_an_id_that_the_service_made_is_watched_like_any_other(line: Line) -> None:
    await line.create()
    results = (await line.put(b"one", b"two")).results
    async with watching(line, results[1].id) as watched:
        assert (await watched.next()).position.position == 2
        await line.ack((await line.take_one()).lease)
        await watched.position(1)


async def test_an_unknown_id_is_said_and_ends_nothing_else(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "nobody", "m0") as watched:
        ended = await watched.finished("nobody")
        assert (ended.outcome, ended.cause) == (NOT_KNOWN, "no such message is known")
        assert not watched.has_ended
        await line.ack((await line.take_one()).lease)
        assert (await watched.finished("m0")).outcome == DONE
        await watched.end()


async def test_a_stream_of_unknown_ids_ends_at_once(line: Line) -> None:
    await line.create()
    async with watching(line, "a", "~0123456789abcdef-7", "~x") as watched:
        told = await watched.end()
    assert [one.finished.outcome for one in told] == [NOT_KNOWN] * 3
    assert [one.sequence for one in told] == [1, 2, 3]


async def test_a_thousand_and_one_ids_on_one_stream_are_told_each_once(line: Line) -> None:
    await line.create()
    for first in range(0, 2_500, 500):
        await line.put(*named(500, first))
    async with watching(line, *(f"m{number}" for number in range(2_500))) as watched:
        await eventually(lambda: len(watched.told) >= 2_500, within=SLACK_S)
        assert {one.position.id: one.position.position for one in watched.told[:2_500]} == {
            f"m{number}": number + 1 for number in range(2_500)
        }
        await line.withdraw("m0")
        assert (await watched.finished("m0")).outcome == WITHDRAWN
        await watched.position(1, "m1")


# What happens to it.


async def test_every_step_near_the_head_is_told(line: Line) -> None:
    await line.create()
    await line.put(*named(20))
    async with watching(line, "m19") as watched:
        await watched.position(20)
        for position in range(19, 0, -1):
            await line.ack((await line.take_one()).lease)
            await watched.position(position)
        assert positions(watched.told, "m19") == list(range(20, 0, -1))
        assert [one.sequence for one in watched.told] == list(range(1, len(watched.told) + 1))
        assert not any(one.position.moved_back for one in watched.told)


async def test_farther_back_steps_are_told_by_tenths_and_not_before_poll_min(line: Line) -> None:
    await line.create(poll=queue_pb2.Poll(base=span(10), per_position=span(0), max=span(10)))
    await line.put(*named(200))
    async with watching(line, "m199") as watched:
        await watched.position(200)
        for _ in range(180):
            await line.ack((await line.take_one()).lease)
        await watched.position(20)
        told = positions(watched.told, "m199")
    assert all(above - below >= above / 10 - 1 or below == 20 for above, below in pairwise(told))


async def test_poll_min_spaces_what_is_told_far_back(line: Line) -> None:
    await line.create(poll=queue_pb2.Poll(base=span(60_000), per_position=span(0), max=span(60_000)))
    await line.put(*named(100))
    async with watching(line, "m99") as watched:
        await watched.position(100)
        await line.ack(*leases(await line.take(70)))
        async with watching(line, "m99") as later:
            await later.position(30)  # so the service knows
        assert positions(watched.told, "m99") == [100]
        await line.ack(*leases(await line.take(10)))
        await watched.position(20)  # among the first: at once


async def test_work_on_a_message_is_told_with_its_attempt_and_progress(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "m0") as watched:
        await watched.position(1)
        lease = (await line.take_one()).lease
        first = await watched.leased()
        assert (first.id, first.attempt, first.HasField("progress")) == ("m0", 1, False)
        assert [one.settled for one in await extend(line, lease, 0.25, "a quarter ✓")] == [EXTENDED]
        second = await watched.leased()
        assert (second.attempt, second.progress.fraction, second.progress.note) == (1, 0.25, "a quarter ✓")
        async with watching(line, "m0") as late:
            assert (await late.leased()).progress.note == "a quarter ✓"
        assert [one.settled for one in await extend(line, lease, 1.0)] == [EXTENDED]
        assert (await watched.leased()).progress.fraction == 1.0
        await line.ack(lease, result=b"42")
        ended = await watched.finished()
        assert (ended.id, ended.outcome, ended.result, ended.cause) == ("m0", DONE, b"42", "")
        await watched.end()


async def test_a_message_given_back_waits_again_and_those_behind_are_told_that_they_moved_back(line: Line) -> None:
    await line.create()
    await line.put(*named(3))
    async with watching(line, "m0", "m2") as watched:
        await watched.position(3, "m2")
        lease = (await line.take_one()).lease
        await watched.leased("m0")
        await watched.position(2, "m2")
        await line.delay(lease, delay_ms=0)
        back = await watched.next(lambda told: told.position.id == "m2" and told.position.position == 3)
        assert back.position.moved_back
        await eventually(lambda: positions(watched.told, "m0") == [1, 1])
        assert not any(one.position.moved_back for one in watched.told if one.position.id == "m0")
        await line.take_one()
        assert (await watched.leased("m0")).attempt == 2


async def test_a_lapsed_lease_is_told_as_waiting_again(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "m0") as watched:
        await watched.position(1)
        await line.take_one(lease_ms=1_500)
        await watched.leased()
        await watched.position(1)
        await line.take_one()
        assert (await watched.leased()).attempt == 2


async def test_a_delayed_message_is_told_so_and_then_its_place(line: Line) -> None:
    await line.create()
    await line.put(*named(1), Message(id="later", payload=b"x", delay=span(1_500)))
    async with watching(line, "later") as watched:
        told = await watched.next()
        place = told.position
        assert (place.id, place.position, place.state, place.length) == ("later", 0, WAITS_LATER, 1)
        assert 0 < place.available_at.ToMilliseconds() - told.as_of.ToMilliseconds() <= 1_500
        await watched.position(2)
        await line.delay(message_ids=["later"], delay_ms=60_000)
        told = await watched.next()
        assert told.position.state == WAITS_LATER
        assert 59_000 < told.position.available_at.ToMilliseconds() - told.as_of.ToMilliseconds() <= 60_000


async def test_a_replaced_message_that_joins_the_tail_has_not_moved_back(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "m0") as watched:
        await watched.position(1)
        await line.take_one()
        await watched.leased()
        await line.put(*named(3, 1))
        await line.put(Message(id="m0", payload=b"new"), on_duplicate=message_pb2.ON_DUPLICATE_REPLACE)
        told = await watched.position(4)
        assert not told.position.moved_back


# How it ends.


async def test_every_outcome_is_told_and_then_the_stream_ends(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(*named(2), Message(id="short", payload=b"", time_to_live=span(1_500)), *named(1, 9))
    async with watching(line, "m0", "m1", "short", "m9") as watched:
        await watched.position(4, "m9")
        first, second = await line.take(2)
        await line.ack(first.lease, result=b"r")
        await line.delay(second.lease, reason="it broke")
        await line.withdraw("m9")
        ends = {}
        for told in await watched.end():
            if told.WhichOneof("event") == "finished":
                ends[told.finished.id] = (told.finished.outcome, told.finished.result, told.finished.cause)
    assert ends == {
        "m0": (DONE, b"r", ""),
        "m1": (DEAD_END, b"", "it broke"),
        "short": (EXPIRED, b"", ""),
        "m9": (WITHDRAWN, b"", ""),
    }
    async with watching(line, "m0", "m1", "short", "m9") as late:
        again = {one.finished.id: (one.finished.outcome, one.finished.result) for one in await late.end()}
    assert again == {name: end[:2] for name, end in ends.items()}


async def test_an_outcome_is_told_as_long_as_it_is_remembered(line: Line) -> None:
    await line.create(remember=span(1_000), dedupe_window=span(0))
    await line.put(*named(1))
    await line.ack((await line.take_one()).lease, result=b"r")
    async with watching(line, "m0") as watched:
        assert (await watched.finished()).result == b"r"

    async def is_forgotten() -> bool:
        async with watching(line, "m0") as watched:
            return (await watched.finished()).outcome == NOT_KNOWN

    await eventually(is_forgotten, within=SLACK_S)


async def test_done_is_told_no_longer_than_its_result_though_the_id_is_known_for_longer(line: Line) -> None:
    await line.create(remember=span(0), dedupe_window=span(60_000))
    await line.put(*named(2))
    first, second = await line.take(2)
    await line.ack(second.lease)  # before the other: it is no more remembered when that is forgotten
    await line.ack(first.lease, result=b"r")
    ends = set()

    async def is_forgotten() -> bool:
        async with watching(line, "m0") as watched:
            end = await watched.finished()
        ends.add((end.outcome, end.result))
        return not end.result

    await eventually(is_forgotten, within=SLACK_S)
    assert ends <= {(DONE, b"r"), (NOT_KNOWN, b"")}
    async with watching(line, "m1") as watched:
        assert (await watched.finished()).outcome == DONE, "there was no result that could be forgotten"
    again = (await line.put(*named(1), on_duplicate=message_pb2.ON_DUPLICATE_KEEP)).results
    assert [(one.deduplicated, one.body_differs) for one in again] == [(True, False)]


async def test_a_deleted_queue_ends_every_message(line: Line) -> None:
    await line.create()
    await line.put(*named(3))
    await line.take_one()
    async with watching(line, "m0", "m1", "m2") as watched:
        await watched.position(2, "m2")
        await line.delete()
        told = await watched.end()
    ends = [one for one in told if one.WhichOneof("event") == "finished"]
    assert [(one.finished.outcome) for one in ends] == [DELETED] * 3
    assert not any(one.HasField("as_of") for one in ends)


async def test_a_queue_made_anew_is_another_one(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "m0") as watched:
        await watched.position(1)
        await line.delete()
        await line.create()
        await line.put(b"other", *named(1))
        assert (await watched.finished()).outcome == DELETED
        await watched.end()
        async with watching(line, "m0") as anew:
            await anew.position(2)


async def test_a_queue_that_is_not_there_is_not_found(line: Line) -> None:
    async with watching(line, "m0") as watched:
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await watched.end()
    assert said.metadata == {"queue": line.name}


async def test_a_stream_ends_at_its_deadline(line: Line) -> None:
    await line.create()
    await line.put(*named(1))
    async with watching(line, "m0", timeout=2) as watched:
        await watched.position(1)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await watched.end()
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await line.counts()).length == 1


# What is refused.


@pytest.mark.parametrize(
    ("ids", "field"),
    [
        ([], "messages.ids"),
        (["a", "b", "a"], "messages.ids[2]"),
        ([""], "messages.ids[0]"),
        (["a", "b\n"], "messages.ids[1]"),
        (["x" * 201], "messages.ids[0]"),
    ],
    ids=["none", "twice", "empty", "control", "long"],
)
async def test_ids_that_are_none_are_refused(line: Line, ids: list[str], field: str) -> None:
    await line.create()
    async with watching(line, *ids) as watched:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await watched.end()
    assert list(said.violations) == [field]


async def test_no_subject_is_refused(line: Line) -> None:
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await anext(
            aiter(line.stub.WatchPosition(queue_service_pb2.WatchPositionRequest(queue=line.name), timeout=SLACK_S))
        )
    assert list(said.violations) == ["subject"]


async def test_up_to_ten_thousand_ids_are_watched_and_no_more(line: Line) -> None:
    await line.create()
    ids = [f"u{number}" for number in range(10_001)]
    async with watching(line, *ids[:10_000]) as watched:
        assert len(await watched.end(within=60)) == 10_000
    async with watching(line, *ids) as watched:
        with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
            await watched.end()
    assert said.metadata == {"field": "messages.ids", "limit": "10000", "size": "10001"}


async def test_hostile_ids_find_nothing_and_hurt_nobody(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    generation = (await line.describe()).generation
    hostile = ["*", "ünï", "~", f"~{generation}-0", f"~{generation}-d0", f"~{generation}-99999999999999999999", "1"]
    async with watching(line, *hostile) as watched:
        assert [one.finished.outcome for one in await watched.end()] == [NOT_KNOWN] * len(hostile)


async def test_many_streams_watch_the_same_message(line: Line) -> None:
    await line.create()
    await line.put(*named(2))
    told = asyncio.Semaphore(0)

    async def one() -> None:
        async with watching(line, "m1") as watched:
            await watched.position(2)
            told.release()
            await watched.position(1)
            told.release()
            assert (await watched.finished()).outcome == WITHDRAWN
            await watched.end()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(one())
        for id_ in ("m0", "m1"):
            for _ in range(50):
                await told.acquire()
            await line.withdraw(id_)
