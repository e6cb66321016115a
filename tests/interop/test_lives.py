"""A queue that a foreign client deletes, or deletes and makes anew, under our leases: nothing of the old life stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness import eventually
from headway.v1 import message_pb2, queue_pb2
from interop.foreign import Foreign
from wire.calls import GONE, Keys, Line, leases, message, payloads, span
from wire.conditions import consumers_wait


async def live_a_full_life(line: Line) -> list[message_pb2.Delivery]:
    """A queue with messages in every state; two leases of it are returned. Ten messages were put, seven taken."""
    await line.create(retry=queue_pb2.Retry(max_attempts=2), bound=0)
    named, late = message(b"named"), message(b"late")
    named.id, late.id = "named", "late"
    late.delay.CopyFrom(span(1_500))
    await line.put(named, late, *(b"old %d" % number for number in range(8)))
    taken = await line.take(7, lease_ms=1_500)
    await line.delay(taken[0].lease, delay_ms=0)  # comes back with an attempt spent
    await line.ack(taken[1].lease)
    for _ in range(2):
        [again] = await line.take(1)
        await line.delay(again.lease, delay_ms=0)  # "named" again: twice failed, dead
    counts = await line.counts()
    assert (counts.acked, counts.dead, counts.delayed, counts.leased) == (1, 1, 1, 5)
    return taken[5:]


async def assert_new(line: Line, *, messages: list[bytes]) -> None:
    """Nothing of an earlier life can be seen."""
    counts = await line.counts()
    assert (counts.length, counts.accepted) == (len(messages), len(messages))
    assert (counts.leased, counts.delayed, counts.dead, counts.returned) == (0, 0, 0, 0)
    assert (counts.acked, counts.expired, counts.withdrawn, counts.taken_by_foreign) == (0, 0, 0, 0)
    assert (counts.put_rate, counts.ack_rate) == (0, 0)
    peeked = await line.peek(100)
    assert [seen.message.payload for seen in peeked] == messages
    assert [seen.failures for seen in peeked] == [0] * len(messages)
    assert [(seen.ticket, seen.position) for seen in peeked] == [(n + 1, n + 1) for n in range(len(messages))]


@pytest.mark.parametrize("looks_first", [True, False], ids=["seen deleted", "not seen deleted"])
async def test_nothing_of_the_old_life_is_in_the_new(
    line: Line, foreign: Foreign, keys: Keys, looks_first: bool
) -> None:
    old = await live_a_full_life(line)
    before = await line.describe()
    await foreign.call("delete")
    if looks_first:
        assert await line.ack(old[0].lease) == [GONE]
    await foreign.call("create", 3)
    await foreign.call("put", b"new")
    await assert_new(line, messages=[b"new"])
    after = await line.describe()
    assert after.generation != before.generation
    assert after.created_at.ToMilliseconds() >= before.created_at.ToMilliseconds()
    assert after.policy.bound == 3
    assert after.policy.retry.max_attempts == 0
    # Ids are free, tickets begin anew, deliveries are first deliveries.
    named = message(b"named anew")
    named.id = "named"
    result = (await line.put(named)).results[0]
    assert not result.HasField("error")
    assert (result.ticket, result.position, result.deduplicated) == (2, 2, False)
    new = await line.take(2)
    assert [(one.message.payload, one.attempt, one.ticket) for one in new] == [(b"new", 1, 1), (b"named anew", 1, 2)]
    # The old leases have no say, though their tickets live again.
    assert await line.ack(*leases(old)) == [GONE, GONE]
    assert [result.settled for result in await line.delay(*leases(old), delay_ms=0)] == [GONE, GONE]
    assert [result.settled for result in await line.extend(*leases(old))] == [GONE, GONE]
    assert [result.settled for result in (await line.get(ack=leases(old))).settled] == [GONE, GONE]
    assert (await line.counts()).leased == 2


async def test_what_was_delayed_or_leased_in_the_old_life_never_appears_in_the_new(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await live_a_full_life(line)
    foreign = make_foreign()
    await foreign.call("delete")
    await foreign.call("create")
    # A later message of the new life: when it has come, the old delays and leases are long over.
    marker = message(b"marker")
    marker.delay.CopyFrom(span(2_500))
    await line.put(marker)
    assert payloads(await line.take(wait_ms=10_000)) == [b"marker"]
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.accepted) == (0, 1, 1)


async def test_a_foreign_delete_stops_what_time_would_have_brought(line: Line, foreign: Foreign, keys: Keys) -> None:
    await live_a_full_life(line)
    await foreign.call("delete")
    # Whoever looks after lapsed leases finds out and takes our keys away, too.
    await eventually(lambda: keys.all() == set(), within=10)


async def test_a_new_life_with_all_the_same_numbers_is_still_a_new_life(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create()
    await line.put(b"12345", b"12345", b"12345")
    old = await line.take(2)
    before = await line.describe()
    counted = {key: keys.client.get(key) for key in keys.all() if ":stats:" in key}
    foreign = make_foreign()
    await foreign.call("delete")
    await foreign.call("create")
    for _ in range(3):
        await foreign.call("put", b"12345")
    for _ in range(2):
        await foreign.call("get")
    assert {key: keys.client.get(key) for key in keys.all() if ":stats:" in key} == counted
    assert await line.ack(*leases(old)) == [GONE, GONE]
    after = await line.describe()
    assert after.generation != before.generation
    assert (after.counts.length, after.counts.leased) == (1, 0)
    delivery = await line.take_one()
    assert delivery.attempt == 1
    assert (await line.counts()).leased == 1


async def test_a_new_life_with_the_same_numbers_knows_none_of_the_old_ids_and_attempts(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create()
    named = message(b"payload")
    named.id = "one"
    await line.put(named)
    await line.delay((await line.take_one()).lease, delay_ms=0)
    foreign = make_foreign()
    await foreign.call("delete")
    await foreign.call("create")
    await foreign.call("put", b"theirs")
    [seen] = await line.peek()
    assert (seen.message.id == "one", seen.failures, seen.last_error) == (False, 0, "")
    assert not (await line.put(named)).results[0].HasField("error")
    first = await line.take_one()
    assert (first.message.payload, first.attempt) == (b"theirs", 1)


async def test_our_delete_and_create_begin_a_new_life_too(line: Line) -> None:
    old = await live_a_full_life(line)
    before = (await line.describe()).generation
    await line.delete()
    await line.create()
    assert (await line.describe()).generation != before
    await line.put(b"new")
    assert await line.ack(*leases(old)) == [GONE, GONE]
    await assert_fresh_delivery(line)


async def assert_fresh_delivery(line: Line) -> None:
    """The only message is new."""
    delivery = await line.take_one()
    assert (delivery.message.payload, delivery.attempt, delivery.ticket) == (b"new", 1, 1)


async def test_a_lease_of_another_queue_is_gone_here(line: Line) -> None:
    await line.create()
    other = Line(line.stub, f"{line.name}-other", line.admin)
    await other.create()
    await line.put(b"new")
    await other.put(b"other")
    lease = (await other.take_one()).lease
    assert await line.ack(lease) == [GONE]
    assert await other.ack(lease) == [1]
    await other.delete()


async def test_many_foreign_lives_in_a_row_leave_nothing_of_each_other(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    tokens: list[str] = []
    generations: set[str] = set()
    for number in range(10):
        foreign = make_foreign()
        await foreign.call("create", number)
        await line.put(b"%d" % number)
        delivery = await line.take_one(lease_ms=60_000)
        assert (delivery.message.payload, delivery.ticket, delivery.attempt) == (b"%d" % number, 1, 1)
        tokens.append(delivery.lease)
        generations.add((await line.describe()).generation)
        assert await line.ack(*tokens[:-1] or [tokens[0] + "x"]) == [GONE] * max(len(tokens) - 1, 1)
        await foreign.call("delete")
    assert len(generations) == len(set(tokens)) == 10


async def test_a_get_that_waits_across_two_lives_serves_the_new_one_or_says_that_the_old_ended(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=5_000))
    await eventually(lambda: consumers_wait(line))
    foreign = make_foreign()
    await foreign.call("delete")
    await foreign.call("create")
    await foreign.call("put", b"new")
    done, _ = await asyncio.wait({waiting}, timeout=10)
    assert done
    if waiting.exception() is None:
        [delivery] = waiting.result().deliveries
    else:
        assert "DELETED" in str(waiting.exception()) or "NOT_FOUND" in str(waiting.exception())
        delivery = await line.take_one()
    assert (delivery.message.payload, delivery.attempt, delivery.ticket) == (b"new", 1, 1)
