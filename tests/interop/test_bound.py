"""The bound holds across both sides, and `not_full` has its token exactly while the line is below the bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2
from interop.clients import QueueClass
from interop.foreign import Foreign
from wire.calls import RESOURCE_EXHAUSTED, SLACK_S, Keys, Line, leases, message, payloads, span


def assert_token_is_true(keys: Keys) -> None:
    """`not_full` exists exactly while the bound is 0 or the line is shorter than the bound."""
    bound = int(keys.client.get(keys["bound"]) or 0)
    assert keys.is_not_full == (bound == 0 or keys.length < bound), (bound, keys.length)


async def test_a_blocked_foreign_put_is_woken_by_our_get(line: Line, foreign: Foreign, keys: Keys) -> None:
    await foreign.call("create", 1)
    await foreign.call("put", b"one")
    blocked = await foreign.block("put", b"two")
    assert payloads(await line.take()) == [b"one"]
    await asyncio.wait_for(blocked, 10)
    assert payloads(await line.take()) == [b"two"]
    assert_token_is_true(keys)


async def test_our_waiting_put_is_woken_by_a_foreign_get(line: Line, foreign: Foreign, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", wait_ms=20_000))
    await eventually(lambda: is_waiting(line))
    assert await foreign.call("get") == b"one"
    result = (await asyncio.wait_for(waiting, 10)).results[0]
    assert (result.ticket, result.position) == (2, 1)
    assert await foreign.call("get") == b"two"
    assert keys.is_not_full


async def is_waiting(line: Line) -> bool:
    """Whether exactly one Put waits for room."""
    return (await line.describe()).counts.producers_waiting == 1


async def test_a_full_queue_is_full_for_both(line: Line, make_foreign: Callable[..., Foreign], keys: Keys) -> None:
    await line.create(bound=2)
    foreign = make_foreign()
    await line.put(b"one")
    await foreign.call("put", b"two")
    assert_token_is_true(keys)
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED) as said:
        await line.put(b"three")
    assert said.metadata == {"queue": line.name, "bound": "2"}
    with pytest.raises(foreign.errors.QueueFullError):
        await foreign.call("put", b"three", block=False)
    assert keys.length == 2
    assert_token_is_true(keys)


async def test_a_foreign_handle_reads_our_bound(line: Line, make_foreign: Callable[..., Foreign]) -> None:
    await line.create(bound=7)
    assert make_foreign().queue.bound == 7


async def test_a_foreign_handle_reads_no_bound_where_there_is_none(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create()
    assert make_foreign().queue.bound is None


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
async def test_not_full_is_true_after_every_step_of_either_side(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys, bound: int
) -> None:
    await line.create(bound=bound)
    foreign = make_foreign()
    assert_token_is_true(keys)

    async def our_put() -> None:
        if bound and keys.length >= bound:
            with refused("QUEUE_FULL"):
                await line.put(b"ours", b"ours")
        else:
            await line.put(b"ours", b"ours")

    async def their_put() -> None:
        if bound and keys.length >= bound:
            with pytest.raises(foreign.errors.QueueFullError):
                await foreign.call("put", b"theirs", block=False)
        else:
            await foreign.call("put", b"theirs", block=False)

    async def our_get() -> None:
        answer = await line.get(2)
        if answer.deliveries:
            await line.ack(*leases(answer.deliveries))

    async def their_get() -> None:
        await foreign.call("get_nowait")

    steps: list[Callable[[], Awaitable[None]]] = [
        *(our_put, their_put, our_put, their_put, our_put, their_put),
        *(our_get, their_put, their_get, our_put, our_put, their_get, their_get, our_get),
        *(their_put, their_put, our_get, our_get, their_get, our_get, their_get, our_put),
    ]
    for step in steps:
        await step()
        assert_token_is_true(keys)
        assert bound == 0 or keys.length <= bound


async def test_a_line_that_a_foreign_client_overfilled_stays_full_until_it_is_below_its_bound(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=2)
    foreign = make_foreign()
    for number in range(4):
        await foreign.call("put", b"%d" % number, block=False, allow_overfilling=True)
    # Whoever overfills leaves the token of a line that was not full: the next step of ours takes it away.
    with refused("QUEUE_FULL"):
        await line.put(b"more")
    assert_token_is_true(keys)
    for left in (3, 2, 1, 0):
        await line.take()
        assert keys.length == left
        assert_token_is_true(keys)


async def test_a_foreign_get_from_an_over_full_line_lets_nobody_exceed_the_bound(
    client: QueueClass, line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    foreign = make_foreign()
    await line.put(b"first")
    for number in range(2):
        await foreign.call("put", b"%d" % number, block=False, allow_overfilling=True)
    await foreign.call("get")  # the release of 2012 gives a token though the line is still over-full
    assert keys.is_not_full is not client.behaves_as_newest
    with refused("QUEUE_FULL"):
        await line.put(b"more")
    assert_token_is_true(keys)


async def test_messages_that_come_back_overfill_the_line_and_are_not_lost(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    foreign = make_foreign()
    await line.put(b"first")
    first = await line.take_one()
    await foreign.call("put", b"second")
    assert_token_is_true(keys)
    await line.delay(first.lease, delay_ms=0)
    assert keys.length == 2
    assert_token_is_true(keys)
    with pytest.raises(foreign.errors.QueueFullError):
        await foreign.call("put", b"third", block=False)
    await line.take()
    assert_token_is_true(keys)
    await line.take()
    assert_token_is_true(keys)
    await foreign.call("put", b"third", block=False)


async def test_leases_that_lapse_overfill_the_line_and_are_not_lost(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=2)
    foreign = make_foreign()
    await line.put(b"first", b"second")
    await line.take(2, lease_ms=100)
    await foreign.call("put", b"third")
    await foreign.call("put", b"fourth")
    await eventually(lambda: keys.length == 4)
    assert_token_is_true(keys)
    assert payloads(await line.take(2)) == [b"first", b"second"]
    assert keys.length == 2
    assert_token_is_true(keys)


async def test_messages_that_fall_due_overfill_the_line_and_are_not_lost(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    foreign = make_foreign()
    later = message(b"later")
    later.delay.CopyFrom(span(1_000))
    await line.put(later)
    await foreign.call("put", b"now")
    assert_token_is_true(keys)
    await eventually(lambda: keys.length == 2)
    assert_token_is_true(keys)
    assert payloads(await line.take(2)) == [b"now", b"later"]
    assert_token_is_true(keys)
    await foreign.call("put", b"fits", block=False)


async def test_a_smaller_bound_takes_the_token_away_and_a_larger_one_gives_it(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=3)
    await line.put(b"one", b"two")
    await line.update(bound=1)
    assert make_foreign().queue.bound == 1
    assert_token_is_true(keys)
    await line.update(bound=3)
    assert_token_is_true(keys)
    await line.update(bound=2)
    assert_token_is_true(keys)
    await line.update(bound=0)
    assert_token_is_true(keys)


async def test_a_larger_bound_wakes_a_blocked_foreign_put(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    blocked = await make_foreign().block("put", b"two")
    await line.update(bound=2)
    await asyncio.wait_for(blocked, 10)
    assert keys.length == 2


async def test_no_step_of_ours_gives_a_second_token_to_a_foreign_put_in_progress(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    foreign = make_foreign()
    # A foreign put between taking its tokens and pushing its element.
    keys.client.rpop(keys["producer_free"])
    keys.client.rpop(keys["not_full"])
    await line.describe()
    await line.get()
    await line.peek()
    keys.client.lpush(keys[""], b"pushed")
    keys.client.lpush(keys["producer_free"], 0)
    with pytest.raises(foreign.errors.QueueFullError):
        await foreign.call("put", b"one too many", block=False)
    assert_token_is_true(keys)


async def lengthen_leases(line: Line) -> None:
    await line.update(lease=span(60_000))


async def lower_the_bound(line: Line) -> None:
    await line.update(bound=1)


async def purge(line: Line) -> None:
    assert line.admin is not None
    answer = await line.admin.Purge(admin_service_pb2.PurgeRequest(queue=line.name, dead=True), timeout=SLACK_S)
    assert answer.delayed + answer.dead == 1


@pytest.mark.parametrize(
    ("kept", "step"),
    [("", lengthen_leases), ("", lower_the_bound), ("delayed", purge), ("dead", purge)],
    ids=["update", "a smaller bound", "purge of delayed", "purge of dead"],
)
async def test_no_step_that_makes_no_room_gives_a_second_token_to_a_foreign_put_in_progress(
    line: Line,
    keys: Keys,
    kept: str,
    step: Callable[[Line], Awaitable[None]],
) -> None:
    await line.create(bound=2 if step is lower_the_bound else 1, retry=queue_pb2.Retry(max_attempts=1))
    if kept:
        await line.put(b"first")
        lease = (await line.take_one()).lease
        await line.delay(lease, delay_ms=3_600_000, keep_attempt=kept == "delayed")
    # As above.
    keys.client.rpop(keys["producer_free"])
    keys.client.rpop(keys["not_full"])
    await step(line)
    assert not keys.is_not_full
    keys.client.lpush(keys[""], b"pushed")
    keys.client.lpush(keys["producer_free"], 0)
    await line.describe()
    assert_token_is_true(keys)


async def test_a_handle_opened_before_the_create_puts_without_a_bound_and_headway_keeps_the_token_true(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    stale = make_foreign()
    await line.create(bound=2)
    assert stale.queue.bound is None
    for number in range(3):
        await stale.call("put", b"%d" % number)
    with refused("QUEUE_FULL"):
        await line.put(b"more")
    assert_token_is_true(keys)
    assert await stale.call("get") == b"0"  # such a handle gives a token in any case
    with refused("QUEUE_FULL"):
        await line.put(b"more")
    assert_token_is_true(keys)
    assert payloads(await line.take(2)) == [b"1", b"2"]
    assert_token_is_true(keys)


async def test_producers_of_both_sides_racing_into_a_bound_never_exceed_it(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=3)
    theirs = [make_foreign(), make_foreign()]
    each, total = 20, 80
    lengths: list[int] = []
    got: list[bytes] = []

    async def ours(who: int) -> None:
        for number in range(each):
            await line.put(b"ours %d %d" % (who, number), wait_ms=60_000)

    async def foreign(who: int) -> None:
        for number in range(each):
            await asyncio.wait_for(theirs[who].start("put", b"theirs %d %d" % (who, number)), 60)

    async def consume() -> None:
        while len(got) < total:
            lengths.append(keys.length)
            answer = await line.get(2, wait_ms=1_000)
            got.extend(payloads(answer.deliveries))
            await line.ack(*leases(answer.deliveries)) if answer.deliveries else None

    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        for who in range(2):
            tasks.create_task(ours(who))
            tasks.create_task(foreign(who))
        tasks.create_task(consume())
    assert max(lengths) <= 3
    assert len(set(got)) == len(got) == total
    assert_token_is_true(keys)
