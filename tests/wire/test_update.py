"""Update: changes the named fields of a policy at once, for messages that wait too."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from harness import error_of, eventually, refused
from headway.v1 import queue_pb2, queue_service_pb2
from wire.calls import DEAD, INVALID_ARGUMENT, NOT_FOUND, Keys, Line, payloads, span
from wire.conditions import consumers_wait, producers_wait
from wire.watches import watching


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.update(bound=1)
    assert said.metadata == {"queue": line.name}


async def test_only_the_named_fields_change(line: Line) -> None:
    await line.create(bound=3, limit=4, lease=span(5_000))
    queue = await line.update("limit", bound=9, limit=8, lease=span(9_000))
    assert (queue.policy.bound, queue.policy.limit, queue.policy.lease.ToMilliseconds()) == (3, 8, 5_000)
    assert (await line.describe()).policy == queue.policy


async def test_a_named_field_that_is_unset_gets_its_default(line: Line) -> None:
    await line.create(bound=3, lease=span(5_000), dedupe_window=span(1), retry=queue_pb2.Retry(max_attempts=3))
    queue = await line.update("bound", "lease", "dedupe_window", "retry.max_attempts")
    policy = queue.policy
    assert (policy.bound, policy.lease.ToMilliseconds(), policy.dedupe_window.ToMilliseconds()) == (0, 30_000, 60_000)
    assert policy.retry.max_attempts == 0


@pytest.mark.parametrize(
    ("min_ms", "paths", "expected_ms"),
    [
        (60_000, ["retry.max_backoff"], 300_000),
        (3_600_000, ["retry.max_backoff"], 3_600_000),
        (3_600_000, ["retry.min_backoff", "retry.max_backoff"], 300_000),
        (3_600_000, ["retry"], 300_000),
    ],
)
async def test_the_default_of_max_backoff_is_min_backoff_where_that_is_longer(
    line: Line, min_ms: float, paths: list[str], expected_ms: int
) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(min_ms), max_backoff=span(7_200_000)))
    queue = await line.update(*paths)
    assert queue.policy.retry.max_backoff.ToMilliseconds() == expected_ms


async def test_a_max_backoff_that_is_given_never_becomes_another(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(3_600_000)))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.update("retry.max_backoff", retry=queue_pb2.Retry(max_backoff=span(300_000)))
    assert list(said.violations) == ["policy.retry.max_backoff"]


async def test_a_path_to_a_part_changes_the_whole_part(line: Line) -> None:
    retry = queue_pb2.Retry(max_attempts=3, min_backoff=span(10), multiplier=3)
    await line.create(retry=retry)
    queue = await line.update("retry", retry=queue_pb2.Retry(max_attempts=5))
    assert queue.policy.retry.max_attempts == 5
    assert queue.policy.retry.min_backoff.ToMilliseconds() == 1_000
    assert queue.policy.retry.multiplier == 2.0


async def test_a_path_into_a_part_leaves_its_other_fields(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=3, min_backoff=span(10), multiplier=3))
    queue = await line.update("retry.max_attempts", retry=queue_pb2.Retry(max_attempts=5))
    assert queue.policy.retry.max_attempts == 5
    assert queue.policy.retry.min_backoff.ToMilliseconds() == 10
    assert queue.policy.retry.multiplier == 3


async def test_the_same_update_again_changes_nothing(line: Line) -> None:
    await line.create()
    assert (await line.update(bound=3)).policy == (await line.update(bound=3)).policy


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["colour"],
        ["bound", "colour"],
        ["retry.colour"],
        ["bound.value"],
        ["*"],
        [""],
        ["policy.bound"],
        ["Bound"],
        ["lease.seconds"],
    ],
    ids=repr,
)
async def test_no_path_or_an_unknown_one_is_refused(line: Line, paths: list[str]) -> None:
    await line.create(bound=3)
    request = queue_service_pb2.UpdateRequest(
        queue=line.name, policy=queue_pb2.Policy(bound=9), update_mask=FieldMask(paths=paths)
    )
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Update(request, timeout=15)
    assert all(field.startswith("update_mask") for field in said.violations)
    assert (await line.describe()).policy.bound == 3


async def test_a_value_out_of_its_range_is_refused_and_nothing_changes(line: Line) -> None:
    await line.create(bound=3)
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.update("bound", "limit", bound=5, limit=1_000_001)
    assert list(said.violations) == ["policy.limit"]
    assert (await line.describe()).policy.bound == 3


async def test_a_value_outside_the_mask_is_not_looked_at(line: Line) -> None:
    await line.create()
    queue = await line.update("bound", bound=5, limit=1_000_001)
    assert (queue.policy.bound, queue.policy.limit) == (5, 0)


async def test_values_that_do_not_go_with_those_that_stay_are_refused(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(min_backoff=span(5_000), max_backoff=span(6_000)))
    with refused("FIELD_INVALID", INVALID_ARGUMENT):
        await line.update("retry.max_backoff", retry=queue_pb2.Retry(max_backoff=span(1_000)))
    with refused("FIELD_INVALID", INVALID_ARGUMENT):
        await line.update("retry.min_backoff", retry=queue_pb2.Retry(min_backoff=span(7_000)))
    retry = (await line.describe()).policy.retry
    assert (retry.min_backoff.ToMilliseconds(), retry.max_backoff.ToMilliseconds()) == (5_000, 6_000)


@pytest.mark.parametrize(
    ("lower", "upper"), [("retry.min_backoff", "retry.max_backoff"), ("poll.base", "poll.max")], ids=["retry", "poll"]
)
async def test_of_updates_that_contradict_each_other_one_is_refused(line: Line, lower: str, upper: str) -> None:
    values = queue_pb2.Policy(
        retry=queue_pb2.Retry(min_backoff=span(10_000), max_backoff=span(5_000)),
        poll=queue_pb2.Poll(base=span(10_000), max=span(5_000)),
    )
    fields = {"retry": values.retry, "poll": values.poll}
    for number in range(20):
        one = Line(line.stub, f"{line.name}-{number}")
        await one.create()
        answers = await asyncio.gather(one.update(lower, **fields), one.update(upper, **fields), return_exceptions=True)
        refusals = [error_of(answer) for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert [error.reason for error in refusals] == ["FIELD_INVALID"]
        assert list(refusals[0].violations) == [f"policy.{upper}"]


async def test_values_that_contradict_each_other_already_keep_no_other_change_out(line: Line, keys: Keys) -> None:
    await line.create()
    keys.client.hset(keys["x:meta"], mapping={"max_backoff_ms": 1, "poll_max_ms": 20})  # as two Updates once left it
    assert (await line.update(limit=3)).policy.limit == 3
    with refused("FIELD_INVALID") as said:
        await line.update("retry.min_backoff", "poll.base", retry=queue_pb2.Retry(min_backoff=span(2)))
    assert list(said.violations) == ["policy.retry.max_backoff", "policy.poll.max"]
    retry = (await line.update("retry.max_backoff", retry=queue_pb2.Retry(max_backoff=span(2_000)))).policy.retry
    assert (retry.min_backoff.ToMilliseconds(), retry.max_backoff.ToMilliseconds()) == (1_000, 2_000)


async def test_a_larger_bound_wakes_waiting_producers(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", b"three", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await line.update(bound=3)
    assert [result.position for result in (await asyncio.wait_for(waiting, 10)).results] == [2, 3]


async def test_a_smaller_bound_leaves_the_line_over_full_until_it_drains(line: Line, keys: Keys) -> None:
    await line.create(bound=3)
    await line.put(b"one", b"two", b"three")
    await line.update(bound=1)
    assert keys.length == 3
    for _ in range(3):
        with refused("QUEUE_FULL"):
            await line.put(b"four")
        await line.take()
    await line.put(b"four")


async def test_a_larger_limit_wakes_waiting_consumers(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"one", b"two", b"three")
    await line.take_one()
    waiting = asyncio.create_task(line.get(5, wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await line.update(limit=2)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"two"]


async def test_a_smaller_limit_takes_no_lease_away(line: Line) -> None:
    await line.create(limit=3)
    await line.put(b"one", b"two", b"three", b"four")
    taken = await line.take(3)
    await line.update(limit=1)
    assert (await line.counts()).leased == 3
    assert await line.ack(taken[0].lease, taken[1].lease) == [1, 1]
    assert (await line.get()).deliveries == []
    assert await line.ack(taken[2].lease) == [1]
    assert payloads(await line.take()) == [b"four"]


async def test_fewer_attempts_count_for_messages_that_wait_already(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    await line.delay((await line.take_one()).lease, delay_ms=0)
    await line.update("retry.max_attempts", retry=queue_pb2.Retry(max_attempts=2))
    [result] = await line.delay((await line.take_one()).lease, delay_ms=0)
    assert (result.settled, result.attempts) == (DEAD, 2)


async def test_a_new_lease_span_counts_from_the_next_lease_on(line: Line) -> None:
    await line.create(lease=span(600_000))
    await line.put(b"one", b"two")
    first = await line.take_one()
    await line.update(lease=span(1_000))
    second = await line.take_one()
    apart = first.lease_expires_at.ToMilliseconds() - second.lease_expires_at.ToMilliseconds()
    assert 590_000 < apart <= 599_000


async def test_a_foreign_queue_can_be_given_a_policy(line: Line, keys: Keys) -> None:
    keys.client.set(keys["bound"], 2)
    for token in ("producer_free", "consumer_free", "not_full"):
        keys.client.lpush(keys[token], 0)
    queue = await line.update(bound=4, limit=1)
    assert (queue.policy.bound, queue.policy.limit) == (4, 1)
    assert keys.client.get(keys["bound"]) == b"4"


async def test_who_watches_messages_is_told_hints_by_it_at_once(line: Line) -> None:
    await line.create()
    *_, last = (await line.put(b"1", b"2")).results
    async with watching(line, last.id) as watched:
        assert (await watched.position(2)).position.poll_min.ToMilliseconds() == 1_500
        await line.update("poll", poll=queue_pb2.Poll(base=span(7_000), max=span(7_000)))
        await line.take_one()
        assert (await watched.position(1)).position.poll_min.ToMilliseconds() == 7_000
