"""Get with `stand`: a place in line for those who cannot stream, kept from poll to poll."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    Keys,
    Line,
    leases,
    payloads,
    span,
)
from wire.conditions import consumers_wait
from wire.streams import Standing, drained_at_once
from wire.watches import watching, watching_queue


def polls(base_ms: float = 300, **fields: object) -> queue_pb2.Poll:
    """A poll part of a policy that tests can wait for."""
    return queue_pb2.Poll(
        base=span(base_ms),
        per_position=span(0),
        max=span(base_ms),
        tolerance=span(50),
        **fields,  # type: ignore[arg-type]
    )


async def poll(line: Line, place: str = "", *, wait_ms: float = 0) -> message_pb2.Standing:
    """Asks once, and finds nothing."""
    answer = await line.get(stand=True, place=place, wait_ms=wait_ms)
    assert not answer.deliveries
    assert answer.HasField("standing")
    return answer.standing


async def test_nothing_to_lease_gives_a_standing(line: Line) -> None:
    await line.create(limit=4)
    first, second = await poll(line), await poll(line)
    assert (first.position, first.length, first.limit) == (1, 1, 4)
    assert (second.position, second.length) == (2, 2)
    assert first.place
    assert first.place != second.place
    assert first.poll_min.ToMilliseconds() == 1_000
    assert second.poll_min.ToMilliseconds() == 1_500
    assert first.poll_max.ToMilliseconds() >= first.poll_min.ToMilliseconds() + 8_000
    assert (await line.describe()).counts.consumers_waiting == 2


async def test_something_to_lease_gives_no_standing(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    answer = await line.get(stand=True)
    assert payloads(answer.deliveries) == [b"1"]
    assert not answer.HasField("standing")
    assert (await line.describe()).counts.consumers_waiting == 0


async def test_polling_in_time_keeps_the_place_and_moves_it_up(line: Line) -> None:
    await line.create(poll=polls(), limit=1)
    await line.put(b"1", b"2")
    held = await line.take_one()
    first, second = await poll(line), await poll(line)
    await asyncio.sleep(0.35)
    again = await poll(line, first.place)
    assert (again.place, again.position, again.length) == (first.place, 1, 2)
    await line.ack(held.lease)
    assert payloads((await line.get(stand=True, place=first.place)).deliveries) == [b"2"]
    assert (await poll(line, second.place)).position == 1


async def test_a_free_slot_waits_for_the_poller_whose_turn_it_is(line: Line) -> None:
    await line.create(limit=1)
    standing = await poll(line)
    await line.put(b"1")
    assert not (await line.get()).deliveries
    async with Standing(line) as behind:
        await behind.position(2)
        assert payloads((await line.get(stand=True, place=standing.place)).deliveries) == [b"1"]
        assert not behind.turns


async def test_how_long_a_poll_is_waited_for_is_not_known(line: Line) -> None:
    await line.create(poll=polls(60_000))
    await poll(line)
    async with Standing(line) as behind:
        await behind.position(2)
        async with watching_queue(line) as watched:
            assert not (await watched.next()).eta.known
        message = (await line.put(b"1")).results[0].id
        async with watching(line, message) as watched:
            assert not (await watched.position(1, message)).position.eta.known


async def test_who_stands_before_a_poll_takes_what_comes_at_once(line: Line) -> None:
    await line.create(poll=polls(60_000))
    async with Standing(line) as first:
        await first.position(1)
        await poll(line)
        async with watching_queue(line) as watched:
            eta = (await watched.next()).eta
            assert (eta.known, eta.p50.ToMilliseconds()) == (True, 0)


async def test_too_soon_is_a_strike_and_the_third_loses_the_place(line: Line) -> None:
    await line.create(poll=polls(5_000))
    place = (await poll(line)).place
    for _ in range(2):
        with refused("POLL_TOO_SOON", RESOURCE_EXHAUSTED) as said:
            await line.get(stand=True, place=place)
        assert said.retry_delay is not None
        assert 3 < said.retry_delay.total_seconds() <= 5
    assert (await line.describe()).counts.consumers_waiting == 1
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(stand=True, place=place)
    assert (await line.describe()).counts.consumers_waiting == 0


async def test_a_poll_in_time_forgives_a_strike(line: Line) -> None:
    await line.create(poll=polls(1_000, strikes=2))  # so long that on a busy machine, too, the next poll is too soon
    standing = await poll(line)
    for _ in range(3):
        with refused("POLL_TOO_SOON"):
            await line.get(stand=True, place=standing.place)
        await asyncio.sleep(standing.poll_min.ToMilliseconds() / 1_000)
        standing = await poll(line, standing.place)


async def test_within_the_tolerance_is_not_too_soon(line: Line) -> None:
    policy = polls(2_000)
    policy.tolerance.CopyFrom(span(60_000))
    await line.create(poll=policy)
    place = (await poll(line)).place
    for _ in range(5):
        await poll(line, place)


async def test_too_soon_is_no_fault_when_there_is_something_to_lease(line: Line) -> None:
    await line.create(poll=polls(5_000))
    place = (await poll(line)).place
    await line.put(b"1")
    assert payloads((await line.get(stand=True, place=place)).deliveries) == [b"1"]


async def test_a_place_serves_once(line: Line) -> None:
    await line.create()
    place = (await poll(line)).place
    await line.put(b"1", b"2")
    assert (await line.get(stand=True, place=place)).deliveries
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(stand=True, place=place)


async def test_a_poll_may_wait_in_the_line_it_stands_in(line: Line) -> None:
    await line.create(poll=polls())
    standing = await poll(line, wait_ms=200)
    await asyncio.sleep(0.35)
    waiting = asyncio.create_task(line.get(stand=True, place=standing.place, wait_ms=5_000))
    await eventually(lambda: consumers_wait(line, 1))
    await line.put(b"1")
    assert payloads((await waiting).deliveries) == [b"1"]


def polls_by_place() -> queue_pb2.Poll:
    """Who stands second polls more rarely than who stands first, and may come at once all the same."""
    return queue_pb2.Poll(base=span(1_000), per_position=span(10_000), max=span(60_000), tolerance=span(60_000))


async def test_after_a_wait_the_next_poll_is_asked_for_by_where_it_stands_then(line: Line) -> None:
    await line.create(poll=polls_by_place())
    async with Standing(line) as ahead:
        await ahead.position(1)
        waiting = asyncio.create_task(poll(line, wait_ms=3_000))
        await eventually(lambda: consumers_wait(line, 2))
    standing = await waiting
    assert standing.position == 1
    assert standing.poll_min.ToMilliseconds() <= 4_000  # of a busy service
    assert standing.poll_max.ToMilliseconds() <= 14_000


async def test_who_breaks_off_is_waited_for_by_where_it_stands_then(line: Line, keys: Keys) -> None:
    await line.create(poll=polls_by_place())
    async with Standing(line) as ahead:
        await ahead.position(1)
        place = (await poll(line)).place
        waiting = asyncio.create_task(line.get(stand=True, place=place, wait_ms=20_000))
        await eventually(lambda: keys.client.zscore(keys["x:consumers"], place) is None)  # this call stands there now
    await eventually(lambda: consumers_wait(line, 1))
    waiting.cancel()
    await eventually(lambda: keys.client.zscore(keys["x:consumers"], place) is not None)
    kept = keys.client.hget(keys["x:places"], place)
    assert kept is not None
    may_come_at, lost_at, _strikes = map(int, kept.split())
    assert lost_at - may_come_at <= 14_000


@pytest.mark.slow
async def test_silence_past_poll_max_loses_the_place(line: Line, keys: Keys) -> None:
    await line.create(poll=polls(10))
    standing = await poll(line)
    await line.put(b"1")
    async with Standing(line) as behind:
        await behind.position(2)
        await asyncio.sleep(standing.poll_max.ToMilliseconds() / 1_000)
        assert payloads(await behind.granted()) == [b"1"]
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(stand=True, place=standing.place)
    assert not {suffix for suffix in keys.suffixes() if "place" in suffix}


@pytest.mark.slow
async def test_with_grace_a_late_poll_still_has_its_place_but_nobody_waits_for_it(line: Line) -> None:
    await line.create(poll=polls(10), place_grace=span(30_000))
    standing = await poll(line)
    await line.put(b"1")
    await asyncio.sleep(standing.poll_max.ToMilliseconds() / 1_000 + 0.3)
    taken = await line.take_one()
    await line.delay(taken.lease, delay_ms=0)
    assert payloads((await line.get(stand=True, place=standing.place)).deliveries) == [b"1"]


async def test_a_holder_that_settles_asks_for_the_next_in_one_call(line: Line) -> None:
    await line.create(poll=polls(60_000), limit=1)
    await line.put(b"1", b"2")
    held = await line.take_one()
    other = await poll(line)
    answer = await line.get(ack=[held.lease], stand=True)
    assert payloads(answer.deliveries) == [b"2"]
    standing = (await line.get(ack=leases(answer.deliveries), stand=True)).standing
    assert standing.position == 1
    await line.put(b"3")
    with refused("POLL_TOO_SOON"):
        await line.get(stand=True, place=other.place)
    assert payloads((await line.get(stand=True, place=standing.place)).deliveries) == [b"3"]


@pytest.mark.parametrize(("place", "stand"), [("not ours", True), ("@" + "x" * 300, True), ("@fine", False)])
async def test_a_place_that_cannot_be_is_refused(line: Line, place: str, stand: bool) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.get(stand=stand, place=place)
    assert "place" in said.violations


async def test_a_place_nobody_gave_is_lost(line: Line) -> None:
    await line.create()
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(stand=True, place="@" + "A" * 22)
    assert (await line.describe()).counts.consumers_waiting == 0


async def test_a_call_whose_place_is_lost_settles_nothing(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    lease = (await line.take_one()).lease
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(ack=[lease], stand=True, place="@" + "A" * 22)
    assert (await line.counts()).leased == 1
    assert await line.ack(lease) == [ACKED]


async def test_a_call_that_comes_too_soon_settles_nothing_unless_that_makes_it_a_holder(line: Line) -> None:
    await line.create(poll=polls(60_000, strikes=2), limit=2)
    await line.put(b"1")
    lease = (await line.take_one()).lease
    place = (await poll(line)).place
    with refused("POLL_TOO_SOON", RESOURCE_EXHAUSTED):
        await line.get(ack=["nobodys"], stand=True, place=place)
    answer = await line.get(ack=[lease], stand=True, place=place)
    assert [result.settled for result in answer.settled] == [ACKED]
    assert answer.standing.place == place
    with refused("PLACE_LOST", NOT_FOUND):  # that was the second strike
        await line.get(ack=[lease], stand=True, place=place)


async def test_who_comes_back_at_once_with_something_to_settle_has_its_place(line: Line, keys: Keys) -> None:
    await line.create(poll=polls(10), limit=2)
    await line.put(b"1")
    lease = (await line.take_one()).lease
    place = (await poll(line)).place
    waiting = asyncio.create_task(line.get(stand=True, place=place, wait_ms=20_000))
    await eventually(lambda: keys.client.zscore(keys["x:consumers"], place) is None)  # this call stands there now
    back = asyncio.create_task(line.get(ack=[lease], stand=True, place=place))
    await line.describe()  # it has looked in vain by then
    waiting.cancel()
    answer = await back
    assert [result.settled for result in answer.settled] == [ACKED]
    assert answer.standing.place == place


async def test_the_same_attempt_again_needs_no_place(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    old = await line.take_one()
    place = (await poll(line)).place
    await line.put(b"2")
    first, again = [
        await line.get(stand=True, place=place, attempt_id="one", ack=[old.lease]) for _ in ("lost", "again")
    ]
    assert payloads(first.deliveries) == [b"2"]
    assert leases(again.deliveries) == leases(first.deliveries)
    assert [result.settled for result in again.settled] == [ALREADY_ACKED]


@pytest.mark.parametrize("comes", ["too soon", "too soon too often", "without its place"])
async def test_a_drained_queue_says_so_to_whoever_polls(line: Line, keys: Keys, comes: str) -> None:
    await line.create(poll=polls(60_000, strikes=1 if "often" in comes else 3))
    place = "@" + "A" * 22 if comes == "without its place" else (await poll(line)).place
    await line.close()
    for _ in range(2):
        with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
            await line.get(stand=True, place=place)
    assert (await line.describe()).counts.consumers_waiting == 0
    assert not {key for key in keys.all() if "place" in key}


async def test_a_drained_queue_says_so_to_a_stream_that_comes_back_to_a_place(line: Line) -> None:
    await line.create(poll=polls(60_000))
    place = (await poll(line)).place
    await line.close()
    for _ in range(2):
        async with Standing(line, place=place) as standing:
            await drained_at_once(standing)
    assert (await line.describe()).counts.consumers_waiting == 0


async def test_who_settles_the_last_of_a_closed_queue_needs_no_turn_to_be_told(line: Line) -> None:
    await line.create(poll=polls(60_000, strikes=1))
    await line.put(b"1")
    lease = (await line.take_one()).lease
    place = (await poll(line)).place
    await line.close()
    with refused("PLACE_LOST"):  # not drained yet
        await line.get(stand=True, place=place)
    place = (await poll(line)).place
    answer = await line.get(ack=[lease], stand=True, place=place)
    assert [result.settled for result in answer.settled] == [ACKED]
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get(stand=True, place=place)


async def test_a_stream_is_never_too_soon_for_a_pollers_place_and_its_end_gives_that_up(line: Line) -> None:
    await line.create(poll=polls(60_000, strikes=1))
    first, second = await poll(line), await poll(line)
    async with Standing(line, place=first.place) as standing:
        assert (await standing.position(1)).place == first.place
        assert (await line.describe()).counts.consumers_waiting == 2

    async def is_first() -> bool:
        return (await line.describe()).counts.consumers_waiting == 1

    await eventually(is_first, within=5)
    with refused("PLACE_LOST", NOT_FOUND):
        await line.get(stand=True, place=first.place)
    await line.put(b"1")
    assert payloads((await line.get(stand=True, place=second.place)).deliveries) == [b"1"]
