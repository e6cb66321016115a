"""What a Delay may hold: every field up to its bounds and beyond."""

from __future__ import annotations

import pytest

from harness import refused
from headway.v1 import queue_service_pb2
from wire.calls import (
    DELAYED,
    INVALID_ARGUMENT,
    RELEASED,
    SLACK_S,
    Keys,
    Line,
    fail_next,
    instant,
    leases,
    now_ms,
    payloads,
)

MAX_BATCH = 1_000
DAY_MS = 24 * 3_600 * 1_000


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("TOO_LARGE" if count else "FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(*["x"] * count, delay_ms=0)
    assert list(said.violations) == ["leases"]


async def test_the_largest_batch_is_given_back_in_order(line: Line) -> None:
    await line.create()
    sent = [b"%d" % number for number in range(MAX_BATCH)]
    await line.put(*sent)
    tokens = leases(await line.take(MAX_BATCH))
    results = await line.delay(*reversed(tokens), delay_ms=0)
    assert {result.settled for result in results} == {RELEASED}
    assert payloads(await line.take(MAX_BATCH)) == sent


@pytest.mark.parametrize("delay_ms", [-1, -0.000001, 366 * DAY_MS + 1])
async def test_a_delay_out_of_its_range_is_refused_and_the_lease_stays(line: Line, delay_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(lease, delay_ms=delay_ms)
    assert list(said.violations) == ["delay"]
    assert (await line.counts()).leased == 1


@pytest.mark.parametrize("delay_ms", [1, 366 * DAY_MS])
async def test_a_delay_up_to_its_bounds_is_taken(line: Line, delay_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    assert (await fail_next(line, delay_ms=delay_ms)).settled == DELAYED


async def test_a_delay_finer_than_a_millisecond_is_rounded_up(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    assert (await fail_next(line, delay_ms=0.000001)).settled == DELAYED


async def test_a_time_more_than_366_days_ahead_is_refused_and_the_lease_stays(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delay(lease, until_ms=int(now_ms(keys.client)) + 367 * DAY_MS)
    assert list(said.violations) == ["until"]
    assert (await line.counts()).leased == 1


@pytest.mark.parametrize("size", [1_024, 1_025])
async def test_a_reason_has_at_most_1024_bytes(line: Line, size: int) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    if size > 1_024:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.delay(lease, delay_ms=0, reason="r" * size)
        assert list(said.violations) == ["reason"]
    else:
        await line.delay(lease, delay_ms=0, reason="r" * size)
        assert (await line.peek())[0].last_error == "r" * size


async def test_a_timestamp_that_is_none_is_refused(line: Line) -> None:
    await line.create()
    request = queue_service_pb2.DelayRequest(queue=line.name, leases=["x"], until=instant(0))
    request.until.nanos = -1
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Delay(request, timeout=SLACK_S)
    assert list(said.violations) == ["until"]
