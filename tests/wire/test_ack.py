"""Ack: settles leases for good, once, and says of each how it stands."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from harness import eventually, refused
from headway.v1 import queue_pb2, queue_service_pb2
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    DEAD,
    GONE,
    INVALID_ARGUMENT,
    RELEASED,
    SLACK_S,
    STALE,
    Keys,
    Line,
    leases,
    payloads,
    span,
)

MAX_BATCH = 1_000


async def returned(line: Line, count: int) -> bool:
    return (await line.describe()).counts.returned == count


async def test_an_acked_message_is_gone_for_good(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two")
    delivery = await line.take_one()
    assert await line.ack(delivery.lease) == [ACKED]
    counts = await line.counts()
    assert (counts.acked, counts.leased, counts.length) == (1, 0, 1)
    assert payloads((await line.get(10)).deliveries) == [b"two"]


async def test_acking_again_is_already_acked(line: Line) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(3)))
    tokens = leases(await line.take(3))
    assert await line.ack(*tokens) == [ACKED] * 3
    for _ in range(3):
        assert await line.ack(*tokens) == [ALREADY_ACKED] * 3
    assert (await line.counts()).acked == 3


async def test_acking_again_is_already_acked_for_a_message_that_failed_before(line: Line) -> None:
    await line.create()
    await line.put(b"x")
    first = await line.take_one()
    await line.delay(first.lease, delay_ms=0)
    second = await line.take_one()
    assert await line.ack(second.lease) == [ACKED]
    assert await line.ack(second.lease) == [ALREADY_ACKED]
    assert await line.ack(first.lease) == [STALE]


async def test_results_come_in_order_and_repeat_the_leases(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    one, two, three = leases(await line.take(3))
    await line.ack(two)
    request = queue_service_pb2.AckRequest(queue=line.name, leases=[three, "made-up", two, one, three])
    results = (await line.stub.Ack(request, timeout=SLACK_S)).results
    assert [result.lease for result in results] == [three, "made-up", two, one, three]
    assert [result.settled for result in results] == [ACKED, GONE, ALREADY_ACKED, ACKED, ALREADY_ACKED]
    assert not any(result.HasField("available_at") for result in results)


async def test_the_result_counts_the_deliveries_that_failed(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    for _ in range(2):
        await line.delay((await line.take_one()).lease, delay_ms=0)
    request = queue_service_pb2.AckRequest(queue=line.name, leases=[(await line.take_one()).lease])
    [result] = (await line.stub.Ack(request, timeout=SLACK_S)).results
    assert (result.settled, result.attempts) == (ACKED, 2)


async def test_a_late_ack_is_accepted_while_nobody_has_taken_the_message(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"late", b"other")
    delivery = await line.take_one(lease_ms=100)
    await eventually(lambda: returned(line, 1))
    assert keys.length == 2
    assert await line.ack(delivery.lease) == [ACKED]
    assert keys.length == 1
    assert payloads((await line.get(10)).deliveries) == [b"other"]
    assert await line.ack(delivery.lease) == [ALREADY_ACKED]
    counts = await line.counts()
    assert (counts.acked, counts.returned) == (1, 0)


async def test_a_late_ack_from_the_middle_of_those_that_came_back_takes_only_its_own(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(6)))
    taken = await line.take(5, lease_ms=100)
    await eventually(lambda: returned(line, 5))
    assert await line.ack(taken[2].lease, taken[0].lease, taken[4].lease) == [ACKED] * 3
    assert payloads((await line.get(10)).deliveries) == [b"1", b"3", b"5"]


async def test_a_late_ack_is_stale_once_somebody_else_has_taken_the_message(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    old = await line.take_one(lease_ms=100)
    new = await line.take_one(wait_ms=10_000)
    assert (new.attempt, new.ticket) == (2, old.ticket)
    assert await line.ack(old.lease) == [STALE]
    assert (await line.counts()).leased == 1
    assert await line.ack(new.lease) == [ACKED]
    assert await line.ack(old.lease) == [STALE]


async def test_the_lease_of_a_message_given_back_has_no_say(line: Line) -> None:
    await line.create()
    await line.put(b"now", b"later")
    now, later = await line.take(2)
    await line.delay(now.lease, delay_ms=0)
    await line.delay(later.lease, delay_ms=600_000)
    assert await line.ack(now.lease, later.lease) == [STALE, STALE]
    counts = await line.counts()
    assert (counts.length, counts.delayed, counts.acked) == (1, 1, 0)


async def test_the_lease_of_a_dead_message_has_no_say(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(b"one")
    lease = (await line.take_one()).lease
    await line.delay(lease, delay_ms=0)
    [answer] = await line.ack(lease)
    assert answer in {DEAD, STALE, GONE}
    counts = await line.counts()
    assert (counts.dead, counts.acked) == (1, 0)


async def test_a_late_ack_of_a_message_whose_lapse_used_up_its_attempts_is_dead(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=100)).lease
    await eventually(lambda: is_dead(line))
    assert await line.ack(lease) == [DEAD]
    counts = await line.counts()
    assert (counts.dead, counts.acked) == (1, 0)


async def is_dead(line: Line) -> bool:
    return (await line.describe()).counts.dead == 1


@pytest.mark.parametrize(
    "token",
    ["", "x", "made-up", "\U0001f422", "0" * 64, "a" * 256, "../..", "*", "1-1-1", "\x00"],
    ids=ascii,
)
async def test_a_made_up_lease_is_gone_and_has_no_effect(line: Line, token: str) -> None:
    await line.create()
    await line.put(b"one")
    await line.take_one()
    assert await line.ack(token) == [GONE]
    assert (await line.counts()).leased == 1


async def test_a_token_is_compared_whole(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two")
    one, two = leases(await line.take(2))
    assert one != two
    forgeries = [one[:-1], one + "A", one[1:], one.swapcase(), one[:-4] + "AAAA", one[: len(one) // 2], one + " "]
    middle = len(one) // 2
    forgeries += [one[:middle] + two[middle:], two[:middle] + one[middle:]]
    forgeries = [forgery for forgery in forgeries if forgery not in {one, two}]
    assert set(await line.ack(*forgeries)) <= {GONE, STALE}
    assert (await line.counts()).leased == 2
    assert await line.ack(one, two) == [ACKED, ACKED]


async def test_leases_of_an_unknown_queue_are_gone_and_no_error(line: Line) -> None:
    assert await line.ack("made-up", "also") == [GONE, GONE]


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if count else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.ack(*["x"] * count)
    assert list(said.violations) == ["leases"]


async def test_the_largest_batch_is_settled(line: Line) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(MAX_BATCH)))
    tokens = leases(await line.take(MAX_BATCH))
    assert await line.ack(*tokens) == [ACKED] * MAX_BATCH
    assert await line.ack(*tokens) == [ALREADY_ACKED] * MAX_BATCH


async def test_a_token_longer_than_any_is_refused_or_gone(line: Line) -> None:
    await line.create()
    try:
        assert await line.ack("a" * 100_000) == [GONE]
    except grpc.aio.AioRpcError:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.ack("a" * 100_000)
        assert list(said.violations) == ["leases[0]"]


async def test_many_racing_acks_of_one_lease_ack_once(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    answers = await asyncio.gather(*(line.ack(lease) for _ in range(50)))
    assert sorted(answer[0] for answer in answers) == [ACKED] + [ALREADY_ACKED] * 49
    assert (await line.counts()).acked == 1


async def test_ack_and_delay_racing_for_one_lease_have_one_winner(line: Line) -> None:
    await line.create()
    for number in range(40):
        await line.put(b"%d" % number)
        lease = (await line.take_one()).lease
        acked, delayed = await asyncio.gather(line.ack(lease), line.delay(lease, delay_ms=0))
        assert (acked[0] == ACKED) != (delayed[0].settled == RELEASED)
        if acked[0] != ACKED:
            assert acked[0] == STALE
            assert await line.ack((await line.take_one()).lease) == [ACKED]
    counts = await line.counts()
    assert (counts.acked, counts.length, counts.leased) == (40, 0, 0)


async def test_a_caller_that_vanishes_leaves_its_message_acked_or_leased_never_between(line: Line) -> None:
    await line.create(lease=span(600_000))
    await line.put(*(b"x" for _ in range(30)))
    tokens = leases(await line.take(30))
    for number, token in enumerate(tokens):
        call = line.stub.Ack(queue_service_pb2.AckRequest(queue=line.name, leases=[token]), timeout=SLACK_S)
        for _ in range(number % 6):
            await asyncio.sleep(0)
        call.cancel()
    counts = await line.counts()
    assert counts.leased + counts.acked == 30
    assert set(await line.ack(*tokens)) <= {ACKED, ALREADY_ACKED}
    assert (await line.counts()).acked == 30
