"""An id that is known already: REJECT, KEEP and REPLACE, in every state that the message with this id may be in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2
from wire.calls import (
    ACKED,
    ALREADY_EXISTS,
    DEAD,
    DELAYED,
    EXTENDED,
    GONE,
    RELEASED,
    RESOURCE_EXHAUSTED,
    STALE,
    Line,
    Message,
    payloads,
    span,
)
from wire.operators import all_dead, assert_sound, list_dead

REJECT = message_pb2.ON_DUPLICATE_REJECT
KEEP = message_pb2.ON_DUPLICATE_KEEP
REPLACE = message_pb2.ON_DUPLICATE_REPLACE
LONG_MS = 600_000
WAITING = ("waiting", "returned")
HERE = (*WAITING, "delayed", "leased", "dead")
FINISHED = ("done", "withdrawn", "expired")


def one(payload: bytes, **fields: object) -> Message:
    return Message(id="one", payload=payload, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Scene:
    """A queue in which the message "one" is in some state, between others; `lease` if somebody holds it."""

    lease: str
    before: queue_pb2.Counts


async def scene(line: Line, state: str) -> Scene:
    await line.create(retry=queue_pb2.Retry(max_attempts=1 if state == "dead" else 0))
    lease = ""
    match state:
        case "delayed":
            await line.put(one(b"old", delay=span(LONG_MS)))
        case "expired":
            await line.put(one(b"old", time_to_live=span(10)))
            await eventually(lambda: has_expired(line))
        case _:
            await line.put(one(b"old"))
    if state in {"returned", "leased", "dead", "done"}:
        lease = (await line.take_one()).lease
        if state in {"returned", "dead"}:
            await line.delay(lease, delay_ms=0, reason="no luck")
        elif state == "done":
            await line.ack(lease)
    elif state == "withdrawn":
        await line.withdraw("one")
    await line.put(b"other")
    return Scene(lease, await line.counts())


async def has_expired(line: Line) -> bool:
    return (await line.counts()).expired == 1


async def put(line: Line, message: Message, how: message_pb2.OnDuplicate.ValueType) -> message_pb2.PutResult:
    """Puts one message among others, so that a refusal is a result."""
    filler = Message(payload=b"filler", delay=span(LONG_MS))
    return (await line.put(filler, message, on_duplicate=how)).results[1]


# Reject and keep.


@pytest.mark.parametrize("how", [REJECT, message_pb2.ON_DUPLICATE_UNSPECIFIED])
@pytest.mark.parametrize("state", [*HERE, *FINISHED])
async def test_reject_refuses_the_new_one_and_leaves_the_old_one(
    line: Line, state: str, how: message_pb2.OnDuplicate.ValueType
) -> None:
    before = (await scene(line, state)).before
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
        await line.put(one(b"new"), on_duplicate=how)
    assert said.metadata == {"queue": line.name, "id": "one"}
    after = await line.counts()
    assert (after.accepted, after.length, after.withdrawn) == (before.accepted, before.length, before.withdrawn)


@pytest.mark.parametrize("state", [*HERE, *FINISHED])
async def test_keep_leaves_the_old_one_and_says_so(line: Line, state: str) -> None:
    before = (await scene(line, state)).before
    result = await put(line, one(b"old"), KEEP)
    assert (result.id, result.deduplicated, result.HasField("error")) == ("one", True, False)
    assert not result.body_differs
    assert bool(result.position) == (state in WAITING)
    assert bool(result.ticket) == (state in WAITING)
    after = await line.counts()
    assert (after.accepted, after.length) == (before.accepted + 1, before.length)
    await assert_sound(line)


@pytest.mark.parametrize("state", HERE)
@pytest.mark.parametrize(
    ("sent", "differs"),
    [
        (one(b"old", headers={"h": "1"}), False),
        (one(b"new", headers={"h": "1"}), True),
        (one(b"", headers={"h": "1"}), True),
        (one(b"old"), True),
        (one(b"old", headers={"h": "2"}), True),
        (one(b"old", headers={"h": "1"}, delay=span(1_000), time_to_live=span(LONG_MS)), False),
        (one(b"old", headers={"h": "1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "v=1"}), False),
    ],
    ids=["the same", "payload", "no payload", "no headers", "headers", "times only", "another trace"],
)
async def test_keep_says_whether_the_body_differs(line: Line, state: str, sent: Message, differs: bool) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1 if state == "dead" else 0))
    old = one(b"old", headers={"h": "1"})
    if state == "delayed":
        old.delay.CopyFrom(span(LONG_MS))
    await line.put(old)
    if state in {"returned", "leased", "dead"}:
        lease = (await line.take_one()).lease
        if state != "leased":
            await line.delay(lease, delay_ms=0)
    result = await put(line, sent, KEEP)
    assert (result.deduplicated, result.body_differs) == (True, differs)


@pytest.mark.parametrize("state", FINISHED)
async def test_keep_says_so_of_one_that_has_ended_too(line: Line, state: str) -> None:
    await scene(line, state)
    same, other = await put(line, one(b"old"), KEEP), await put(line, one(b"new"), KEEP)
    assert [(result.deduplicated, result.body_differs) for result in (same, other)] == [(True, False), (True, True)]


async def test_headers_in_another_order_are_no_difference(line: Line) -> None:
    await line.create()
    await line.put(one(b"", headers={"a": "1", "b": "2"}))
    assert not (await put(line, one(b"", headers={"b": "2", "a": "1"}), KEEP)).body_differs


# Replace.


@pytest.mark.parametrize("state", [*HERE, *FINISHED])
async def test_replace_lets_the_new_one_take_over_as_never_delivered(line: Line, state: str) -> None:
    was = await scene(line, state)
    result = await put(line, one(b"new", headers={"h": "2"}), REPLACE)
    assert (result.id, result.deduplicated, result.body_differs, result.HasField("error")) == (
        "one",
        False,
        False,
        False,
    )
    assert result.ticket > 0
    assert result.position == (1 if state in WAITING else 2)
    after = await line.counts()
    assert after.accepted == was.before.accepted + 2
    assert after.withdrawn == was.before.withdrawn + (state in HERE)
    assert (after.dead, after.leased) == (0, 0)
    assert after.length == 2
    deliveries = {d.message.id: d for d in (await line.get(10)).deliveries}
    assert len(deliveries) == 2
    new = deliveries["one"]
    assert (new.message.payload, dict(new.message.headers), new.attempt) == (b"new", {"h": "2"}, 1)
    assert await line.ack(new.lease) == [ACKED]
    await assert_sound(line)


async def test_the_new_one_takes_the_place_of_one_that_waits(line: Line) -> None:
    await line.create()
    await line.put(b"a", one(b"old"), b"b")
    result = await put(line, one(b"new"), REPLACE)
    assert (result.position, result.ticket) == (2, 2)
    [_, seen, _] = await line.peek(3)
    assert (seen.position, seen.ticket, seen.message.payload) == (2, result.ticket, b"new")
    assert payloads(await line.take(3)) == [b"a", b"new", b"b"]
    await assert_sound(line)


async def test_the_new_one_takes_the_place_of_one_that_came_back(line: Line) -> None:
    await line.create()
    await line.put(b"a", one(b"old"), b"b", b"c")
    taken = await line.take(3)
    await line.delay(*(delivery.lease for delivery in taken), delay_ms=0, reason="no luck")
    assert (await put(line, one(b"new"), REPLACE)).position == 2
    [_, seen, *_] = await line.peek(4)
    assert (seen.message.payload, seen.failures, seen.last_error) == (b"new", 0, "")
    deliveries = await line.take(4)
    assert payloads(deliveries) == [b"a", b"new", b"b", b"c"]
    assert [delivery.attempt for delivery in deliveries] == [2, 1, 2, 1]
    await assert_sound(line)


async def test_a_new_one_that_is_delayed_leaves_the_place_of_the_old_one(line: Line) -> None:
    await line.create()
    await line.put(b"a", one(b"old"), b"b")
    result = await put(line, one(b"new", delay=span(300)), REPLACE)
    assert (result.ticket, result.position) == (0, 0)
    assert payloads(await line.take(2)) == [b"a", b"b"]
    assert payloads(await line.take(1, wait_ms=10_000)) == [b"new"]
    await assert_sound(line)


async def test_a_new_one_replaces_a_delayed_one_with_another_time(line: Line) -> None:
    await line.create()
    await line.put(one(b"old", delay=span(200)))
    await put(line, one(b"new", delay=span(LONG_MS)), REPLACE)
    assert (await line.get(wait_ms=400)).deliveries == []
    await put(line, one(b"newer", delay=span(50)), REPLACE)
    assert payloads(await line.take(1, wait_ms=10_000)) == [b"newer"]
    assert (await line.get(wait_ms=200)).deliveries == []
    await assert_sound(line)


async def test_the_lease_of_a_replaced_message_goes_stale_and_it_is_worked_on_again(line: Line) -> None:
    await line.create()
    await line.put(one(b"old"))
    old = await line.take_one()
    await put(line, one(b"new"), REPLACE)
    assert [result.settled for result in await line.extend(old.lease)] == [STALE]
    assert [result.settled for result in await line.delay(old.lease, delay_ms=0)] == [STALE]
    assert await line.ack(old.lease) == [STALE]
    new = await line.take_one()
    assert (new.message.payload, new.attempt) == (b"new", 1)
    assert await line.ack(old.lease) == [STALE]
    assert await line.ack(new.lease) == [ACKED]
    assert (await line.counts()).acked == 1
    await assert_sound(line)


async def test_replacing_a_leased_message_frees_its_slot(line: Line) -> None:
    await line.create(limit=1)
    await line.put(one(b"old"))
    await line.take_one()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumer_waits(line))
    await put(line, one(b"new"), REPLACE)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"new"]
    await assert_sound(line)


async def consumer_waits(line: Line) -> bool:
    return (await line.describe()).counts.consumers_waiting == 1


async def test_a_full_queue_has_room_for_one_that_takes_a_place(line: Line) -> None:
    await line.create(bound=2)
    await line.put(one(b"old"), b"b")
    [result] = (await line.put(one(b"new"), on_duplicate=REPLACE)).results
    assert result.position == 1
    assert (await line.counts()).length == 2
    assert payloads(await line.take(2)) == [b"new", b"b"]


@pytest.mark.parametrize("state", ["leased", "dead", "delayed"])
async def test_a_full_queue_has_no_room_for_one_that_joins_it_and_the_old_one_stays(line: Line, state: str) -> None:
    was = await scene(line, state)
    await line.update(bound=1)
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.put(one(b"new"), on_duplicate=REPLACE)
    after = await line.counts()
    assert (after.accepted, after.withdrawn) == (was.before.accepted, was.before.withdrawn)
    assert (after.leased, after.dead, after.delayed) == (was.before.leased, was.before.dead, was.before.delayed)
    if was.lease and state == "leased":
        assert [result.settled for result in await line.extend(was.lease)] == [EXTENDED]
        assert await line.ack(was.lease) == [ACKED]


async def test_replacing_the_dead_takes_it_from_them(line: Line) -> None:
    await scene(line, "dead")
    assert [dead.message.payload for dead in await all_dead(line)] == [b"old"]
    await put(line, one(b"new"), REPLACE)
    assert (await list_dead(line)).messages == []


async def test_the_lease_of_a_dead_message_goes_stale_when_that_is_replaced(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(one(b"old"))
    old = await line.take_one()
    assert [result.settled for result in await line.delay(old.lease, delay_ms=0)] == [DEAD]
    await put(line, one(b"new"), REPLACE)
    assert [result.settled for result in await line.extend(old.lease)] == [STALE]
    assert [result.settled for result in await line.delay(old.lease, delay_ms=0)] == [STALE]
    assert await line.ack(old.lease) == [STALE]
    assert payloads(await line.take()) == [b"new"]
    await assert_sound(line)


async def test_an_id_twice_in_one_batch_ends_as_the_last_one(line: Line) -> None:
    await line.create()
    results = (await line.put(one(b"first"), b"between", one(b"second"), on_duplicate=REPLACE)).results
    assert [(result.position, result.deduplicated) for result in results] == [(1, False), (2, False), (1, False)]
    counts = await line.counts()
    assert (counts.accepted, counts.length, counts.withdrawn) == (3, 2, 1)
    assert payloads(await line.take(2)) == [b"second", b"between"]
    await assert_sound(line)


async def test_replacing_what_is_not_known_is_a_put(line: Line) -> None:
    await line.create()
    [result] = (await line.put(one(b"new"), on_duplicate=REPLACE)).results
    assert (result.ticket, result.position, result.deduplicated) == (1, 1, False)
    counts = await line.counts()
    assert (counts.accepted, counts.withdrawn) == (1, 0)


@pytest.mark.parametrize("state", [*HERE, *FINISHED])
async def test_replacing_again_and_again_leaves_one(line: Line, state: str) -> None:
    await scene(line, state)
    answers = await asyncio.gather(*(line.put(one(b"%d" % at), on_duplicate=REPLACE) for at in range(30)))
    assert all(not answer.results[0].HasField("error") for answer in answers)
    deliveries = (await line.get(100)).deliveries
    assert len(deliveries) == 2
    assert sum(delivery.message.id == "one" for delivery in deliveries) == 1
    await assert_sound(line)


@pytest.mark.parametrize("how", [REJECT, KEEP, REPLACE])
@pytest.mark.parametrize("state", [*HERE, *FINISHED])
async def test_all_or_nothing_goes_by_the_same_rules(
    line: Line, state: str, how: message_pb2.OnDuplicate.ValueType
) -> None:
    was = await scene(line, state)
    batch: list[bytes | Message] = [b"x", one(b"new"), b"y"]
    if how == REJECT:
        with refused("DUPLICATE_MESSAGE"):
            await line.put(*batch, on_duplicate=how, all_or_nothing=True)
        assert (await line.counts()).accepted == was.before.accepted
        return
    results = (await line.put(*batch, on_duplicate=how, all_or_nothing=True)).results
    assert [result.deduplicated for result in results] == [False, how == KEEP, False]
    after = await line.counts()
    assert after.accepted == was.before.accepted + (2 if how == KEEP else 3)
    assert after.withdrawn == was.before.withdrawn + (how == REPLACE and state in HERE)
    await assert_sound(line)


async def test_all_or_nothing_without_room_replaces_nothing(line: Line) -> None:
    await line.create(bound=2)
    await line.put(one(b"old"), b"b")
    with refused("QUEUE_FULL"):
        await line.put(one(b"new"), b"c", on_duplicate=REPLACE, all_or_nothing=True)
    assert payloads(await line.take(2)) == [b"old", b"b"]


async def test_a_named_job_that_waits_is_put_again_at_no_cost(line: Line) -> None:
    """What a named job is for: the newest payload, once, however often it was asked for."""
    await line.create(dedupe_window=span(0))
    for number in range(5):
        await line.put(one(b"%d" % number), on_duplicate=REPLACE)
    job = await line.take_one()
    assert job.message.payload == b"4"
    await line.put(one(b"5"), on_duplicate=REPLACE)  # changed while it is worked on
    assert await line.ack(job.lease) == [STALE]
    job = await line.take_one()
    assert (job.message.payload, await line.ack(job.lease)) == (b"5", [ACKED])
    assert (await line.get()).deliveries == []
    await assert_sound(line)


async def test_a_replaced_message_that_was_given_back_is_no_ghost(line: Line) -> None:
    await line.create()
    await line.put(one(b"old"))
    old = await line.take_one()
    assert [result.settled for result in await line.delay(old.lease, delay_ms=100)] == [DELAYED]
    await put(line, one(b"new"), REPLACE)
    assert payloads(await line.take(1)) == [b"new"]
    assert (await line.get(wait_ms=300)).deliveries == []
    assert await line.ack(old.lease) in ([STALE], [GONE])
    await assert_sound(line)


async def test_the_time_to_live_is_the_new_ones(line: Line) -> None:
    await line.create()
    await line.put(one(b"old", time_to_live=span(1_500)))
    await put(line, one(b"new"), REPLACE)
    await line.put(Message(id="clock", time_to_live=span(1_600)))
    await eventually(lambda: has_expired(line))
    assert payloads((await line.get(5)).deliveries) == [b"new"]


async def test_a_replaced_message_can_be_given_back_by_its_new_holder(line: Line) -> None:
    await line.create()
    await line.put(b"a", one(b"old"))
    await put(line, one(b"new"), REPLACE)
    _, new = await line.take(2)
    assert [result.settled for result in await line.delay(new.lease, delay_ms=0)] == [RELEASED]
    assert payloads(await line.take()) == [b"new"]
    await assert_sound(line)
