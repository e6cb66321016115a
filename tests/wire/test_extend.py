"""Extend: keeps leases alive."""

from __future__ import annotations

import pytest

from harness import eventually, refused
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import (
    ACKED,
    DEAD,
    EXTENDED,
    GONE,
    INVALID_ARGUMENT,
    SLACK_S,
    STALE,
    Keys,
    Line,
    leases,
    now_ms,
    payloads,
    span,
)

MAX_BATCH = 1_000


async def test_the_new_deadline_counts_from_now(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=1_000)).lease
    before = now_ms(keys.client)
    [result] = await line.extend(lease, lease_ms=60_000)
    after = now_ms(keys.client)
    assert (result.settled, result.lease) == (EXTENDED, lease)
    assert before - 1 <= result.available_at.ToMilliseconds() - 60_000 <= after


async def test_without_a_span_the_queues_policy_counts(line: Line, keys: Keys) -> None:
    await line.create(lease=span(7_000))
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=1_000)).lease
    before = now_ms(keys.client)
    [result] = await line.extend(lease)
    after = now_ms(keys.client)
    assert before - 1 <= result.available_at.ToMilliseconds() - 7_000 <= after


async def test_an_extended_lease_outlives_its_first_deadline(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"marker first", b"two")
    marker, kept = await line.take_one(lease_ms=1_500), await line.take_one(lease_ms=1_500)
    await line.extend(kept.lease, lease_ms=60_000)
    await eventually(lambda: keys.length == 1)  # the one that was not extended is back
    assert (await line.counts()).leased == 1
    assert await line.ack(kept.lease) == [ACKED]
    assert await line.ack(marker.lease) == [ACKED]  # late, and nobody else took it


async def test_a_lease_can_be_shortened(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=600_000)).lease
    assert [result.settled for result in await line.extend(lease, lease_ms=100)] == [EXTENDED]
    await eventually(lambda: keys.length == 1)
    assert (await line.take_one()).attempt == 2


async def test_extending_again_and_again_costs_no_attempt(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=1_000)).lease
    for _ in range(5):
        [result] = await line.extend(lease, lease_ms=1_000)
        assert (result.settled, result.attempts) == (EXTENDED, 0)
    assert await line.ack(lease) == [ACKED]


async def test_a_lapsed_lease_whose_message_nobody_took_is_taken_up_again(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one", b"two")
    lease = (await line.take_one(lease_ms=100)).lease
    await eventually(lambda: keys.length == 2)
    [result] = await line.extend(lease, lease_ms=60_000)
    assert result.settled == EXTENDED
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.returned) == (1, 1, 0)
    assert payloads(await line.take()) == [b"two"]
    assert await line.ack(lease) == [ACKED]


async def test_a_lapsed_lease_whose_message_somebody_took_is_stale(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    old = await line.take_one(lease_ms=100)
    new = await line.take_one(wait_ms=10_000, lease_ms=60_000)
    assert [result.settled for result in await line.extend(old.lease, lease_ms=60_000)] == [STALE]
    assert await line.ack(new.lease) == [ACKED]


async def test_a_lapsed_lease_is_taken_up_again_only_if_a_slot_is_free(line: Line, keys: Keys) -> None:
    await line.create(limit=1)
    await line.put(b"one", b"two")
    lapsed = await line.take_one(lease_ms=100)
    await eventually(lambda: keys.length == 2)
    again = await line.take_one()
    assert again.message.payload == b"one"
    await line.ack(again.lease)
    other = await line.take_one(lease_ms=100)
    await eventually(lambda: keys.length == 1)
    await line.put(b"three")
    taker = await line.take_one(lease_ms=60_000)
    assert taker.message.payload == b"two"
    assert [result.settled for result in await line.extend(lapsed.lease, other.lease)] == [STALE, STALE]
    assert (await line.counts()).leased == 1


async def test_with_every_slot_taken_a_lapsed_lease_stays_lapsed(line: Line, keys: Keys) -> None:
    await line.create(limit=2)
    await line.put(b"one", b"two", b"three")
    one = await line.take_one(lease_ms=100)
    await line.take_one(lease_ms=60_000)
    await eventually(lambda: keys.length == 2)
    await line.update(limit=1)
    [result] = await line.extend(one.lease, lease_ms=60_000)
    assert result.settled in {STALE, GONE}
    counts = await line.counts()
    assert (counts.leased, counts.length) == (1, 2)
    assert await line.ack(one.lease) == [ACKED]  # a late ack needs no slot


async def test_each_lease_is_told_how_it_stands(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    await line.put(b"1", b"2", b"3", b"4")
    acked, dead, kept, released = await line.take(4)
    await line.ack(acked.lease)
    await line.delay(dead.lease, delay_ms=0)
    await line.delay(released.lease, delay_ms=0, keep_attempt=True)
    results = await line.extend(acked.lease, dead.lease, kept.lease, "made-up", released.lease, kept.lease)
    states = [result.settled for result in results]
    assert states[0] in {GONE, STALE}
    assert states[1] in {GONE, STALE, DEAD}
    assert states[2:5] == [EXTENDED, GONE, STALE]
    assert states[5] in {EXTENDED, STALE}
    assert (await line.counts()).leased == 1


async def test_leases_of_an_unknown_queue_are_gone_and_no_error(line: Line) -> None:
    assert [result.settled for result in await line.extend("made-up")] == [GONE]


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if count else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.extend(*["x"] * count)
    assert list(said.violations) == ["leases"]


async def test_the_largest_batch_is_extended(line: Line) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(MAX_BATCH)))
    results = await line.extend(*leases(await line.take(MAX_BATCH)), lease_ms=60_000)
    assert {result.settled for result in results} == {EXTENDED}
    assert len({result.available_at.ToMilliseconds() for result in results}) == 1


@pytest.mark.parametrize("lease_ms", [-1, 0, 99, 12 * 3_600_000 + 1])
async def test_a_lease_out_of_its_range_is_refused(line: Line, lease_ms: float) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.extend("x", lease_ms=lease_ms)
    assert list(said.violations) == ["lease"]


@pytest.mark.parametrize("lease_ms", [100, 12 * 3_600_000])
async def test_a_lease_up_to_its_bounds_is_given(line: Line, lease_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    assert [result.settled for result in await line.extend(lease, lease_ms=lease_ms)] == [EXTENDED]


@pytest.mark.parametrize(
    ("progress", "field"),
    [
        ({"fraction": 1.0001}, "progress.fraction"),
        ({"fraction": -0.0001}, "progress.fraction"),
        ({"fraction": float("nan")}, "progress.fraction"),
        ({"fraction": float("inf")}, "progress.fraction"),
        ({"note": "n" * 1025}, "progress.note"),
        ({"note": "ü" * 513}, "progress.note"),
    ],
    ids=str,
)
async def test_progress_out_of_its_range_is_refused_and_nothing_is_extended(
    line: Line, keys: Keys, progress: dict[str, object], field: str
) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one(lease_ms=300)).lease
    request = queue_service_pb2.ExtendRequest(
        queue=line.name,
        leases=[lease],
        lease=span(600_000),
        progress=message_pb2.Progress(**progress),  # type: ignore[arg-type]
    )
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Extend(request, timeout=SLACK_S)
    assert list(said.violations) == [field]
    await eventually(lambda: keys.length == 1)
