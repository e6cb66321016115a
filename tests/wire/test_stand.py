"""WatchPosition with `stand`: places in the consumer line, turns, and all given up at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, Keys, Line, Message, leases, payloads, span
from wire.conditions import consumers_wait, leased
from wire.flows import Consuming
from wire.streams import Standing, drained_at_once
from wire.watches import watching_queue


async def test_the_first_message_tells_the_place_at_once(line: Line) -> None:
    await line.create(limit=3)
    async with Standing(line) as first, Standing(line) as second:
        told = await first.position(1)
        assert (told.length, told.limit, told.state) == (1, 3, queue_service_pb2.STATE_WAITING)
        assert told.place
        assert told.poll_min.ToMilliseconds() == 1_000
        assert told.poll_max.ToMilliseconds() >= 9_000
        assert not told.eta.known
        told = await second.position(2)
        assert told.length == 2
        assert told.poll_min.ToMilliseconds() == 1_500
        assert [one.sequence for one in first.seen] == list(range(1, len(first.seen) + 1))
        assert all(one.as_of.ToMilliseconds() > 0 for one in first.seen)


async def test_what_waits_is_granted_at_once_and_the_stream_ends_when_it_is_settled(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two")
    async with Standing(line, max_messages=2) as standing:
        deliveries = await standing.granted()
        assert payloads(deliveries) == [b"one", b"two"]
        await line.ack(deliveries[0].lease)
        await asyncio.sleep(0.3)
        assert not standing.call.done()
        await line.ack(deliveries[1].lease)
        assert await standing.ended() is grpc.StatusCode.OK
    assert (await line.counts()).acked == 2


async def test_turns_come_in_the_order_of_the_line(line: Line) -> None:
    await line.create()
    async with Standing(line) as first, Standing(line) as second, Standing(line) as third:
        await third.position(3)
        await line.put(b"1")
        assert payloads(await first.granted()) == [b"1"]
        await third.position(2)
        await line.put(b"2", b"3")
        assert payloads(await second.granted()) == [b"2"]
        assert payloads(await third.granted()) == [b"3"]


async def test_a_newcomer_takes_nothing_that_one_in_line_could_have(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1", b"2", b"3")
    held = await line.take_one()
    async with Standing(line) as standing:
        await standing.position(1)
        await line.ack(held.lease)
        for _ in range(20):
            assert not (await line.get()).deliveries
        assert payloads(await standing.granted()) == [b"2"]
    await eventually(lambda: leased(line, 0))
    assert payloads((await line.get()).deliveries) == [b"2"]


async def test_never_more_leases_than_slots(line: Line) -> None:
    await line.create(limit=2)
    await line.put(*(b"%d" % number for number in range(6)))
    async with Standing(line) as first, Standing(line) as second, Standing(line) as third:
        held = [*await first.granted(), *await second.granted()]
        assert (await third.position(1)).limit == 2
        assert not third.turns
        await line.ack(held[0].lease)
        await third.granted()
        assert (await line.counts()).leased == 2


async def test_the_end_of_a_stream_gives_its_leases_back_at_no_attempts_cost(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    async with Standing(line, max_messages=2) as standing:
        assert payloads(await standing.granted()) == [b"1", b"2"]
    await eventually(lambda: leased(line, 0), within=1)
    again = (await line.get(3)).deliveries
    assert payloads(again) == [b"1", b"2", b"3"]
    assert {one.attempt for one in again} == {1}


async def test_the_end_of_a_stream_serves_the_next_in_line(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1")
    first = Standing(line)
    await first.granted()
    async with Standing(line) as second, Standing(line) as third:
        await third.position(2)
        await first.end()
        assert payloads(await second.granted()) == [b"1"]
        await third.position(1)


async def test_who_leaves_moves_up_those_behind(line: Line) -> None:
    await line.create()
    first = Standing(line)
    await first.position(1)
    async with Standing(line) as second:
        await second.position(2)
        await first.end()
        await second.position(1)
        assert second.positions == [2, 1]


@asynccontextmanager
async def behind(line: Line, count: int) -> AsyncIterator[list[Standing]]:
    """So many stand before whoever comes; none of the places behind the first 20 is told anew for a long time."""
    await line.create(poll=queue_pb2.Poll(base=span(60_000)))
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Standing(line)) for _ in range(count)]


async def leave(standing: list[Standing]) -> None:
    await asyncio.gather(*(one.end() for one in standing))


async def test_who_comes_among_the_first_is_told_at_once(line: Line) -> None:
    async with behind(line, 29) as first, Standing(line) as last:
        await last.position(30)
        await leave(first[:25])
        assert (await last.position(5)).length == 5


async def test_who_comes_among_the_first_as_the_last_of_them_is_told_at_once(line: Line) -> None:
    async with behind(line, 20) as first, Standing(line) as last, Standing(line) as behind_all:
        await last.position(21)
        await leave(first[:1])
        assert (await last.position(20)).length == 21
        assert behind_all.positions == [22]


async def test_a_consume_stream_that_comes_among_the_first_is_told_at_once(line: Line) -> None:
    async with behind(line, 29) as first, Consuming(line, 1) as last:
        await last.position(30)
        await leave(first[:25])
        assert (await last.position(5)).length == 5


async def test_a_holder_that_keeps_standing_goes_on_before_all_others(line: Line) -> None:
    await line.create(limit=1)
    await line.put(*(b"%d" % number for number in range(4)))
    async with Standing(line, keep_standing=True) as holder, Standing(line) as other:
        for turn in range(1, 4):
            await line.ack(*leases(await holder.granted(turn)))
        assert payloads(await holder.granted(4)) == [b"3"]
        assert not other.turns


async def test_turns_bound_how_often_a_holder_goes_on(line: Line) -> None:
    await line.create(limit=1, turns=2)
    await line.put(*(b"%d" % number for number in range(4)))
    async with Standing(line, keep_standing=True) as holder, Standing(line, keep_standing=True) as other:
        await other.position(1)
        await line.ack(*leases(await holder.granted(1)))
        await line.ack(*leases(await holder.granted(2)))
        assert payloads(await other.granted(1)) == [b"2"]
        assert len(holder.turns) == 2
        await holder.position(1)


async def test_a_holder_whose_turns_are_used_up_has_its_place_at_the_end_at_once(
    line: Line,
) -> None:
    await line.create(turns=2)
    async with Standing(line, keep_standing=True) as over, Standing(line, keep_standing=True) as before_all:
        await line.put(b"1")
        await line.ack(*leases(await over.granted(1)))
        await line.put(b"2")
        last = leases(await over.granted(2))
        await line.put(b"3")
        await line.ack(*leases(await before_all.granted(1)))
        await before_all.position(1)
        await line.ack(*last)
        await over.until(lambda one: one.HasField("position") and one.position.position == 2)
        assert over.positions[-1] == 2


async def test_a_holder_whose_lease_lapses_stands_at_the_end(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1")
    async with Standing(line, keep_standing=True, lease=span(1_500)) as holder, Standing(line) as other:
        await holder.granted()
        await other.position(1)
        assert [one.attempt for one in await other.granted()] == [2]
        await holder.position(1)


async def test_a_holder_whose_message_is_replaced_stands_at_the_end(line: Line) -> None:
    await line.create(limit=1)
    await line.put(Message(id="job", payload=b"old"))
    async with Standing(line, keep_standing=True) as holder, Standing(line) as other:
        await holder.granted()
        await other.position(1)
        await line.put(Message(id="job", payload=b"new"), on_duplicate=message_pb2.ON_DUPLICATE_REPLACE)
        assert payloads(await other.granted()) == [b"new"]
        await holder.position(1)
        assert len(holder.turns) == 1


async def test_a_settled_lease_stays_settled_when_its_stream_ends(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Standing(line, max_messages=2) as standing:
        first, _ = await standing.granted()
        await line.ack(first.lease)
    await eventually(lambda: leased(line, 0))
    assert payloads((await line.get(5)).deliveries) == [b"2"]


async def test_a_closed_queue_that_is_drained_ends_the_stream(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    held = await line.take_one()
    async with Standing(line) as standing:
        await standing.position(1)
        await line.close()
        await line.ack(held.lease)
        told = await standing.until(lambda one: one.HasField("finished"))
        assert (told.finished.outcome, told.finished.id) == (queue_service_pb2.OUTCOME_DRAINED, "")
        assert await standing.ended() is grpc.StatusCode.OK


async def test_a_stream_that_comes_to_a_drained_queue_is_told_so_and_nothing_else(line: Line) -> None:
    await line.create()
    await line.close()
    async with Standing(line) as standing:
        await drained_at_once(standing)
    assert (await line.describe()).counts.consumers_waiting == 0


@pytest.mark.parametrize("holds", [False, True])
async def test_a_queue_that_is_deleted_ends_the_stream(line: Line, holds: bool) -> None:
    await line.create()
    if holds:
        await line.put(b"1")
    async with Standing(line) as standing:
        await (standing.granted() if holds else standing.position(1))
        await line.delete()
        told = await standing.until(lambda one: one.HasField("finished"))
        assert told.finished.outcome == queue_service_pb2.OUTCOME_DELETED
        assert await standing.ended() is grpc.StatusCode.OK


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        async for _ in line.stub.WatchPosition(
            queue_service_pb2.WatchPositionRequest(queue=line.name, stand=queue_service_pb2.Stand())
        ):
            pass


@pytest.mark.parametrize(
    ("field", "stand"),
    [
        ("stand.consumer", {"consumer": "x" * 201}),
        ("stand.lease", {"lease": span(99)}),
        ("stand.lease", {"lease": span(-1)}),
        ("stand.place", {"place": "nobody gave this"}),
        ("stand.max_messages", {"max_messages": 1_000_000}),
    ],
)
async def test_bad_input_is_refused_and_nobody_stands(line: Line, field: str, stand: dict[str, Any]) -> None:
    await line.create()
    standing = Standing(line, **stand)
    code = await standing.ended()
    assert code is INVALID_ARGUMENT
    with refused("FIELD_INVALID") as said:
        await standing.until(lambda _: False)
    assert field in {said.metadata.get("field"), *said.violations}
    assert (await line.describe()).counts.consumers_waiting == 0


@asynccontextmanager
async def left_with_grace(line: Line) -> AsyncIterator[tuple[Standing, Standing]]:
    """Of two in the line the first has just gone, and may come back: who went, and who stands there yet."""
    await line.create(place_grace=span(5_000))
    first = Standing(line)
    await first.position(1)
    async with Standing(line) as second:
        await second.position(2)
        await first.end()
        yield first, second


async def test_with_grace_a_broken_stream_may_come_back_to_its_place(line: Line, keys: Keys) -> None:
    async with left_with_grace(line) as (first, _):
        await eventually(lambda: keys.client.exists(keys["x:places"]))  # the service has noticed
        async with Standing(line, place=first.place) as again:
            await again.position(1)
            assert again.place == first.place
            await line.put(b"1")
            assert payloads(await again.granted()) == [b"1"]


async def test_with_grace_nobody_waits_for_who_is_away(line: Line) -> None:
    async with left_with_grace(line) as (_, second):
        await line.put(b"1")
        assert payloads(await second.granted()) == [b"1"]


async def test_with_grace_who_is_away_holds_nothing_back_and_takes_nothing(line: Line, keys: Keys) -> None:
    async def told() -> queue_service_pb2.WatchQueueResponse:
        async with watching_queue(line) as watched:
            return await watched.next()  # type: ignore[no-any-return]

    async def nobody_takes_it() -> bool:
        now = await told()
        return not now.eta.known and now.queue.counts.consumers_waiting == 2

    async with left_with_grace(line) as (_, second):
        await line.update(place_grace=span(60_000))
        await eventually(lambda: keys.client.exists(keys["x:places"]))  # the service has noticed
        eta = (await told()).eta
        assert (eta.known, eta.p50.ToMilliseconds()) == (True, 0)
        await second.end()
        await eventually(nobody_takes_it)


async def test_without_grace_the_place_is_lost_with_the_stream(line: Line, keys: Keys) -> None:
    await line.create()
    first = Standing(line)
    await first.position(1)
    await first.end()
    await eventually(lambda: consumers_wait(line, 0))
    with refused("PLACE_LOST", NOT_FOUND):
        await Standing(line, place=first.place).until(lambda _: False)
    assert not {suffix for suffix in keys.suffixes() if "place" in suffix}
