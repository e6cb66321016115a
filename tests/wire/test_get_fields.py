"""What a Get may ask for: every field up to its bounds and beyond."""

from __future__ import annotations

import pytest

from harness import refused
from headway.v1 import queue_service_pb2
from wire.calls import INVALID_ARGUMENT, SLACK_S, Keys, Line, now_ms, span

MAX_BATCH = 1_000


@pytest.mark.parametrize("count", [1, MAX_BATCH])
async def test_a_batch_up_to_the_largest_is_given(line: Line, count: int) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(MAX_BATCH)))
    assert len((await line.get(count)).deliveries) == count


@pytest.mark.parametrize("count", [MAX_BATCH + 1, 4_294_967_295])
async def test_a_batch_above_the_largest_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.get(count)
    assert list(said.violations) == ["max_messages"]


@pytest.mark.parametrize("wait_ms", [-1, -0.000001, 3_600_001])
async def test_a_wait_out_of_its_range_is_refused(line: Line, wait_ms: float) -> None:
    await line.create()
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(wait_ms))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Get(request, timeout=SLACK_S)
    assert list(said.violations) == ["wait"]


@pytest.mark.parametrize("lease_ms", [-1, 0, 99, 99.999999, 12 * 3_600_000 + 1])
async def test_a_lease_out_of_its_range_is_refused_and_nothing_leased(line: Line, lease_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.get(lease_ms=lease_ms)
    assert list(said.violations) == ["lease"]
    assert (await line.counts()).leased == 0


@pytest.mark.parametrize("lease_ms", [100, 12 * 3_600_000])
async def test_a_lease_up_to_its_bounds_is_given(line: Line, keys: Keys, lease_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    delivery = await line.take_one(lease_ms=lease_ms)
    assert abs(delivery.lease_expires_at.ToMilliseconds() - lease_ms - now_ms(keys.client)) < 5_000


@pytest.mark.parametrize("size", [200, 201])
async def test_a_consumers_name_has_at_most_200_bytes(line: Line, size: int) -> None:
    await line.create()
    await line.put(b"one")
    if size > 200:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.get(consumer="c" * size)
        assert list(said.violations) == ["consumer"]
    else:
        await line.get(consumer="c" * size)
        assert (await line.describe()).roles.consumer.holder == "c" * size
