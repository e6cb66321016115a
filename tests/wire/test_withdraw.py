"""Withdraw: cancels what waits or is delayed, wherever it stands, and says exactly why it cannot."""

from __future__ import annotations

import asyncio

import pytest

from faults.moments import at_rest
from harness import StoreServer, eventually, refused
from headway.v1 import error_reason_pb2, message_pb2, queue_service_pb2
from wire.calls import (
    ACKED,
    FAILED_PRECONDITION,
    GONE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SLACK_S,
    STALE,
    Keys,
    Line,
    Message,
    leases,
    payloads,
    span,
)
from wire.conditions import consumers_wait, producers_wait
from wire.operators import ONE_ATTEMPT, assert_sound, bury

MAX_BATCH = 1_000


def named(message_id: str, payload: bytes = b"x") -> Message:
    return Message(id=message_id, payload=payload)


def reason_of(result: queue_service_pb2.WithdrawResult) -> str:
    """The reason of one result; "" if the message was withdrawn."""
    assert result.withdrawn != result.HasField("error")
    if result.withdrawn:
        return ""
    return error_reason_pb2.ErrorReason.Name(result.error.reason).removeprefix("ERROR_REASON_")


async def withdrawn(line: Line, *ids: str) -> list[str]:
    """The reasons, one per id."""
    results = await line.withdraw(*ids)
    assert [result.id for result in results] == list(ids)
    return [reason_of(result) for result in results]


async def order(line: Line) -> list[tuple[int, bytes]]:
    """Positions and payloads of what waits."""
    return [(seen.position, seen.message.payload) for seen in await line.peek(MAX_BATCH)]


# Where it stands.


async def test_a_waiting_message_is_cancelled_and_never_delivered(line: Line) -> None:
    await line.create()
    await line.put(named("a", b"a"), named("b", b"b"), named("c", b"c"))
    assert await withdrawn(line, "b") == [""]
    counts = await line.counts()
    assert (counts.length, counts.withdrawn, counts.accepted) == (2, 1, 3)
    assert payloads((await line.get(10)).deliveries) == [b"a", b"c"]
    await assert_sound(line)


async def test_positions_behind_move_up_at_once(line: Line) -> None:
    await line.create()
    await line.put(*(named(f"m{number}", b"%d" % number) for number in range(10)))
    assert await withdrawn(line, "m5", "m1", "m9") == [""] * 3
    left = [b"0", b"2", b"3", b"4", b"6", b"7", b"8"]
    assert await order(line) == list(enumerate(left, 1))
    [kept] = (await line.put(named("m6"), on_duplicate=message_pb2.ON_DUPLICATE_KEEP)).results
    assert (kept.ticket, kept.position) == (7, 5)
    [put] = (await line.put(b"new")).results
    assert (put.ticket, put.position) == (11, 8)
    assert payloads(await line.take(8)) == [*left, b"new"]
    await assert_sound(line)


@pytest.mark.parametrize("first", ["head", "tail"])
async def test_the_head_and_the_tail_can_be_withdrawn_until_nothing_is_left(line: Line, first: str) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(7)]
    await line.put(*(named(message_id) for message_id in ids))
    for gone, message_id in enumerate(ids if first == "head" else reversed(ids), 1):
        assert await withdrawn(line, message_id) == [""]
        assert (await line.counts()).length == len(ids) - gone
    assert (await line.get()).deliveries == []
    [put] = (await line.put(b"new")).results
    assert (put.ticket, put.position) == (8, 1)
    assert payloads(await line.take()) == [b"new"]
    await assert_sound(line)


async def test_a_delayed_message_is_cancelled(line: Line) -> None:
    await line.create()
    await line.put(Message(id="later", payload=b"x", delay=span(1_500)), Message(id="other", delay=span(1_500)))
    assert await withdrawn(line, "later") == [""]
    counts = await line.counts()
    assert (counts.delayed, counts.withdrawn) == (1, 1)
    assert [one.message.id for one in await line.take(1, wait_ms=10_000)] == ["other"]
    assert (await line.get(wait_ms=200)).deliveries == []


async def test_a_message_that_came_back_is_cancelled(line: Line) -> None:
    await line.create()
    await line.put(*(named(f"m{number}", b"%d" % number) for number in range(4)))
    taken = await line.take(3)
    await line.delay(*leases(taken), delay_ms=0)
    assert await withdrawn(line, "m1") == [""]
    counts = await line.counts()
    assert (counts.length, counts.returned) == (3, 2)
    assert await order(line) == [(1, b"0"), (2, b"2"), (3, b"3")]
    assert payloads(await line.take(3)) == [b"0", b"2", b"3"]
    await assert_sound(line)


async def test_the_lapsed_lease_of_a_withdrawn_message_has_no_say(line: Line) -> None:
    await line.create()
    await line.put(named("a"))
    lease = (await line.take_one(lease_ms=100)).lease
    await eventually(lambda: has_length(line, 1))
    assert await withdrawn(line, "a") == [""]
    assert await line.ack(lease) == [GONE]
    assert [result.settled for result in await line.extend(lease)] == [GONE]
    assert [result.settled for result in await line.delay(lease, delay_ms=0)] == [GONE]
    counts = await line.counts()
    assert (counts.acked, counts.withdrawn, counts.length) == (0, 1, 0)
    await assert_sound(line)


@pytest.mark.parametrize(("delay_ms", "told"), [(0, GONE), (600_000, STALE)], ids=["at once", "delayed"])
async def test_a_lease_that_was_given_back_tells_what_became_of_its_message_unless_it_was_delayed(
    line: Line, delay_ms: int, told: int
) -> None:
    await line.create()
    await line.put(named("a"))
    lease = (await line.take_one()).lease
    await line.delay(lease, delay_ms=delay_ms)
    assert await line.ack(lease) == [STALE]
    assert await withdrawn(line, "a") == [""]
    assert await line.ack(lease) == [told]
    assert [result.settled for result in await line.extend(lease)] == [told]
    assert [result.settled for result in await line.delay(lease, delay_ms=0)] == [told]


async def has_length(line: Line, length: int) -> bool:
    return (await line.counts()).length == length


async def test_a_message_delayed_by_its_worker_is_cancelled(line: Line) -> None:
    await line.create()
    await line.put(named("a"))
    await line.delay((await line.take_one()).lease, delay_ms=600_000)
    assert await withdrawn(line, "a") == [""]
    counts = await line.counts()
    assert (counts.delayed, counts.length, counts.withdrawn) == (0, 0, 1)


async def test_a_message_that_nobody_named_is_cancelled_by_the_id_made_for_it(line: Line) -> None:
    await line.create()
    waiting, headed, later = (
        await line.put(b"bare", Message(payload=b"h", headers={"a": "1"}), Message(payload=b"l", delay=span(600_000)))
    ).results
    assert await withdrawn(line, later.id, waiting.id, headed.id) == [""] * 3
    counts = await line.counts()
    assert (counts.length, counts.delayed, counts.withdrawn) == (0, 0, 3)
    await assert_sound(line)


async def test_a_made_id_holds_through_all_lives_of_its_message(line: Line) -> None:
    await line.create()
    [put] = (await line.put(b"bare")).results
    for delay_ms in (0, 50):
        await line.delay((await line.take_one(wait_ms=10_000)).lease, delay_ms=delay_ms)
    assert await withdrawn(line, put.id) == [""]
    assert (await line.get(wait_ms=200)).deliveries == []
    await assert_sound(line)


# Why not.


async def test_a_leased_message_is_its_holders(line: Line) -> None:
    await line.create()
    await line.put(named("a"))
    lease = (await line.take_one()).lease
    [result] = await line.withdraw("a")
    assert (result.id, reason_of(result), result.error.code) == ("a", "MESSAGE_LEASED", FAILED_PRECONDITION.value[0])
    assert dict(result.error.metadata) == {"queue": line.name, "id": "a"}
    assert result.error.message
    assert await line.ack(lease) == [ACKED]


async def test_an_unknown_message_is_not_found(line: Line) -> None:
    await line.create()
    [put] = (await line.put(b"bare")).results
    unknown = ["nobody", "~", "~made-up", f"{put.id}0", put.id.replace("-", "-d"), put.id[:-1], "~0-1", "~" + "9" * 60]
    results = await line.withdraw(*unknown)
    assert [reason_of(result) for result in results] == ["MESSAGE_NOT_FOUND"] * len(unknown)
    assert [result.error.code for result in results] == [NOT_FOUND.value[0]] * len(unknown)
    assert dict(results[0].error.metadata) == {"queue": line.name, "id": "nobody"}
    assert (await line.counts()).length == 1


async def test_an_id_of_an_earlier_life_of_the_queue_is_not_found(line: Line) -> None:
    await line.create()
    [old] = (await line.put(b"old")).results
    await line.delete()
    await line.create()
    await line.put(b"new")
    assert await withdrawn(line, old.id) == ["MESSAGE_NOT_FOUND"]
    assert (await line.counts()).length == 1


async def test_withdrawing_again_says_that_it_is_finished_and_how(line: Line) -> None:
    await line.create()
    [made] = (await line.put(b"bare")).results
    await line.put(named("a"))
    for message_id in ("a", made.id):
        assert await withdrawn(line, message_id) == [""]
        for _ in range(2):
            [result] = await line.withdraw(message_id)
            assert reason_of(result) == "MESSAGE_FINISHED"
            assert dict(result.error.metadata) == {"queue": line.name, "id": message_id, "outcome": "WITHDRAWN"}
    assert (await line.counts()).withdrawn == 2


async def test_each_id_of_a_batch_has_its_own_answer_in_order(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, named("dead"))
    await line.put(named("done"), named("held"), named("a"), Message(id="later", delay=span(600_000)))
    done, _ = await line.take(2)
    await line.ack(done.lease)
    assert await withdrawn(line, "held", "a", "nobody", "later", "a", "dead", "done") == [
        "MESSAGE_LEASED",
        "",
        "MESSAGE_NOT_FOUND",
        "",
        "MESSAGE_FINISHED",
        "MESSAGE_FINISHED",
        "MESSAGE_FINISHED",
    ]
    await assert_sound(line)


async def test_what_cannot_be_withdrawn_is_a_result_even_if_it_is_everything(line: Line) -> None:
    await line.create()
    assert await withdrawn(line, "x", "y") == ["MESSAGE_NOT_FOUND"] * 2


# What follows.


async def test_the_id_stays_known_for_the_dedupe_window(line: Line) -> None:
    await line.create(dedupe_window=span(1_500))
    await line.put(named("a"))
    await line.withdraw("a")
    with refused("DUPLICATE_MESSAGE"):
        await line.put(named("a"))

    async def is_free() -> bool:
        return not (await line.put(b"filler", named("a"))).results[1].HasField("error")

    await eventually(is_free)


async def test_it_makes_room_for_a_producer_that_waits(line: Line) -> None:
    await line.create(bound=2)
    await line.put(named("a"), named("b"))
    waiting = asyncio.create_task(line.put(b"c", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await line.withdraw("a")
    [put] = (await asyncio.wait_for(waiting, 10)).results
    assert put.position == 2
    assert (await line.counts()).length == 2


async def test_withdrawing_the_last_message_drains_a_closed_queue(line: Line, store_server: StoreServer) -> None:
    await line.create()
    await line.put(Message(id="later", delay=span(600_000)))
    await line.close()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await at_rest(store_server)  # it looks no more, but listens
    await line.withdraw("later")
    with refused("QUEUE_DRAINED"):
        await asyncio.wait_for(waiting, 4)  # sooner than by the safety check


async def test_the_length_stays_pressures(line: Line, keys: Keys) -> None:
    await line.create(bound=3)
    await line.put(named("a"), named("b"), named("c"))
    assert not keys.is_not_full
    await line.withdraw("b")
    assert keys.is_not_full
    assert (await line.counts()).length == 2


async def test_withdraw_and_get_racing_for_messages_share_them_out(line: Line) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(300)]
    await line.put(*(named(message_id) for message_id in ids))

    async def work() -> list[str]:
        taken: list[str] = []
        while deliveries := (await line.get(3)).deliveries:
            taken += [delivery.message.id for delivery in deliveries]
        return taken

    async def cancel() -> list[str]:
        return [message_id for message_id in reversed(ids) if await withdrawn(line, message_id) == [""]]

    taken, gone = await asyncio.gather(work(), cancel())
    assert sorted([*taken, *gone]) == sorted(ids)
    await assert_sound(line)


async def test_a_long_line_full_of_holes_keeps_its_order(line: Line) -> None:
    await line.create()
    for start in range(0, 3_000, MAX_BATCH):
        await line.put(*(named(f"m{start + at}", b"%d" % (start + at)) for at in range(MAX_BATCH)))
    gone = {number for number in range(3_000) if number % 3 != 1}
    for start in range(0, len(gone), MAX_BATCH):
        ids = [f"m{number}" for number in sorted(gone)[start : start + MAX_BATCH]]
        assert set(await withdrawn(line, *ids)) == {""}
    assert (await line.counts()).length == 1_000
    [seen] = await line.peek(from_position=500)
    assert (seen.position, seen.message.id) == (500, "m1498")
    left = [b"%d" % number for number in range(3_000) if number not in gone]
    assert payloads(await line.take(1_000)) == left
    await assert_sound(line)


# What is refused.


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.withdraw("a")
    assert said.metadata == {"queue": line.name}


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if count else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.withdraw(*["a"] * count)
    assert list(said.violations) == ["message_ids"]


async def test_the_largest_batch_is_taken(line: Line) -> None:
    await line.create()
    ids = [f"m{number}" for number in range(MAX_BATCH)]
    await line.put(*(named(message_id) for message_id in ids))
    assert await withdrawn(line, *ids) == [""] * MAX_BATCH
    assert (await line.counts()).length == 0


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\n", "\x00"], ids=ascii)
async def test_an_id_that_is_no_id_is_refused_with_the_whole_call(line: Line, bad: str) -> None:
    await line.create()
    await line.put(named("a"))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.withdraw("a", bad)
    assert list(said.violations) == ["message_ids[1]"]
    assert (await line.counts()).length == 1


async def test_ids_that_look_like_keys_or_patterns_are_only_ids(line: Line) -> None:
    hostile = [f"{line.name}:closed", "*", "x:ids", "%s", "$(id)", "1", "-1", "nil", "ü" * 100, "\u202e"]
    await line.create()
    await line.put(*(named(message_id) for message_id in hostile))
    assert await withdrawn(line, *hostile) == [""] * len(hostile)
    assert (await line.counts()).length == 0
    await assert_sound(line)


async def test_a_paused_and_a_closed_queue_are_withdrawn_from(line: Line) -> None:
    await line.create()
    await line.put(named("a"), named("b"))
    assert line.admin is not None
    await line.close()
    request = queue_service_pb2.WithdrawRequest(queue=line.name, message_ids=["a"])
    assert (await line.stub.Withdraw(request, timeout=SLACK_S)).results[0].withdrawn
