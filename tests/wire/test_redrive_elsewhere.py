"""Redrive to another queue: none lost on the way, none twice, and nothing there overfilled."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from wire.calls import ACKED, FAILED_PRECONDITION, NOT_FOUND, SLACK_S, Line, Message, leases, payloads
from wire.operators import all_dead, assert_sound, bury, numbered, redrive, with_dead


@pytest.fixture
def other(line: Line) -> Line:
    """Another queue of this test's own; it is not made yet."""
    return Line(line.stub, f"{line.name}-other", line.admin)


async def test_the_dead_go_to_another_queue_under_their_own_ids(line: Line, other: Line) -> None:
    await with_dead(line, 3)
    await bury(line, Message(payload=b"made", headers={"h": "1"}))
    made = (await all_dead(line))[-1].message.id
    await other.create()
    told = await redrive(line, to=other.name)
    assert (told[-1].redriven, told[-1].remaining) == (4, 0)
    counts = await line.counts()
    assert (counts.dead, counts.length, counts.withdrawn) == (0, 0, 4)
    deliveries = await other.take(4)
    assert payloads(deliveries) == [b"0", b"1", b"2", b"made"]
    assert [delivery.message.id for delivery in deliveries] == ["m0", "m1", "m2", made]
    assert dict(deliveries[3].message.headers) == {"h": "1"}
    assert [delivery.attempt for delivery in deliveries] == [1] * 4
    assert await other.ack(*leases(deliveries)) == [ACKED] * 4
    counts = await other.counts()
    assert (counts.accepted, counts.acked) == (4, 4)
    await assert_sound(line)
    await assert_sound(other)


async def test_by_id_to_another_queue(line: Line, other: Line) -> None:
    await with_dead(line, 3)
    await other.create()
    told = await redrive(line, "m1", "nobody", to=other.name)
    assert (told[-1].redriven, list(told[-1].not_found_ids)) == (1, ["nobody"])
    assert payloads(await other.take()) == [b"1"]
    assert (await line.counts()).dead == 2


async def test_a_message_that_the_target_knows_is_not_put_there_twice(line: Line, other: Line) -> None:
    """As after a redrive that broke off between putting there and removing here."""
    await with_dead(line, 2)
    await other.create()
    await other.put(numbered(0, b"0"))
    await redrive(line, to=other.name)
    counts = await other.counts()
    assert counts.length == 2
    assert sorted(payloads(await other.take(2))) == [b"0", b"1"]
    assert (await line.counts()).dead == 0
    await assert_sound(line)
    await assert_sound(other)


async def test_the_same_queue_by_name_is_the_same_queue(line: Line) -> None:
    await with_dead(line, 2)
    told = await redrive(line, to=line.name)
    assert told[-1].redriven == 2
    counts = await line.counts()
    assert (counts.length, counts.withdrawn) == (2, 0)


async def test_a_full_target_is_waited_for_and_never_overfilled(line: Line, other: Line) -> None:
    await with_dead(line, 5)
    await other.create(bound=2)
    redriving = asyncio.create_task(redrive(line, to=other.name))
    got: list[bytes] = []
    while len(got) < 5:
        counts = await other.counts()
        assert counts.length <= 2
        deliveries = (await other.get(2, wait_ms=5_000)).deliveries
        got += payloads(deliveries)
        await other.ack(*leases(deliveries))
    told = await asyncio.wait_for(redriving, SLACK_S)
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    assert (told[0].redriven, told[0].remaining) == (2, 3)
    assert (told[-1].redriven, told[-1].remaining) == (5, 0)
    await assert_sound(line)
    await assert_sound(other)


# What is refused.


async def test_an_unknown_queue_is_not_found(line: Line, other: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await redrive(line)
    assert said.metadata == {"queue": line.name}
    await with_dead(line, 1)
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await redrive(line, to=other.name)
    assert said.metadata == {"queue": other.name}
    assert (await line.counts()).dead == 1


async def test_a_closed_target_is_refused_and_nothing_is_lost(line: Line, other: Line) -> None:
    await with_dead(line, 2)
    await other.create()
    await other.close()
    for ids in ((), ("m0",)):
        with refused("QUEUE_CLOSED", FAILED_PRECONDITION) as said:
            await redrive(line, *ids, to=other.name)
        assert said.metadata == {"queue": other.name}
    assert (await line.counts()).dead == 2
    await line.close()
    with refused("QUEUE_CLOSED", FAILED_PRECONDITION) as said:
        await redrive(line)
    assert said.metadata == {"queue": line.name}
    assert (await line.counts()).dead == 2


async def test_the_dead_of_a_closed_queue_go_to_one_that_is_open(line: Line, other: Line) -> None:
    await with_dead(line, 2)
    await other.create()
    await line.close()
    await redrive(line, to=other.name)
    assert payloads(await other.take(2)) == [b"0", b"1"]


async def test_a_target_that_is_closed_on_the_way_ends_it(line: Line, other: Line) -> None:
    await with_dead(line, 30)
    await other.create()
    redriving = asyncio.create_task(redrive(line, to=other.name, rate=10))
    await eventually(lambda: has_some(other))
    await other.close()
    with refused("QUEUE_CLOSED") as said:
        await redriving
    assert said.metadata == {"queue": other.name}
    here, there = await line.counts(), await other.counts()
    assert here.dead + there.length == 30
    await assert_sound(line)
    await assert_sound(other)


async def has_some(line: Line) -> bool:
    return (await line.counts()).length >= 2
