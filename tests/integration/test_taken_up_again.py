"""Whose a lease is that lapsed and was taken up again, though others of its step were given to somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from integration.desk import BUDGET_S, HOUR_MS, Desk

STREAM, OTHER = "headway/gone/1#1", "headway/gone/1#2"


@pytest.fixture
async def held(desk: Desk) -> list[str]:
    """Three leases that a stream was given in one step. The first two have lapsed."""
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    waiter = Waiter(name=STREAM, owns_leases=True)
    order = GetOrder(queue=desk.name, max_messages=3, lease_ms=1_000)
    step = await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)
    leases = [one.lease for one in step.deliveries]
    await extended(desk, leases[2:])
    desk.at(1_000)
    await desk.sweep()
    assert (await desk.counts()).leased == 1
    return leases


async def extended(desk: Desk, leases: Sequence[str], *, owner: str = "") -> None:
    """They run on, whether they had lapsed or not."""
    results = await desk.store.extend(desk.name, leases, HOUR_MS, owner=owner, budget_s=BUDGET_S)
    assert {one.settled.name for one in results} == {"EXTENDED"}
    assert await desk.is_sound()


async def ended(desk: Desk, waiter: str) -> int:
    """How many are leased when this stream has ended."""
    await desk.store.stop_standing(desk.name, waiter, budget_s=BUDGET_S)
    assert await desk.is_sound()
    return (await desk.counts()).leased


def owned(desk: Desk) -> dict[str, int]:
    """How many leases each stream owns."""
    held = cast(dict[bytes, bytes], desk.raw.hgetall(desk.key("held")))
    return {waiter.decode(): int(count) for waiter, count in held.items()}


async def test_taken_up_again_on_a_stream_it_is_that_streams(desk: Desk, held: list[str]) -> None:
    await extended(desk, held[:1], owner=STREAM)
    await extended(desk, held[1:2], owner=OTHER)
    assert owned(desk) == {STREAM: 2, OTHER: 1}
    assert await ended(desk, STREAM) == 1
    assert await ended(desk, OTHER) == 0
    assert [(one.payload, one.attempt) for one in await desk.take(3)] == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert not desk.raw.exists(desk.key("owners"), desk.key("held"))


async def test_taken_up_again_by_a_call_it_is_no_streams_and_the_others_stay_what_they_are(
    desk: Desk, held: list[str]
) -> None:
    await extended(desk, held[:2])
    assert owned(desk) == {STREAM: 1}
    assert await desk.ack(held[0]) == ["ACKED"]
    assert owned(desk) == {STREAM: 1}
    assert await ended(desk, STREAM) == 1
    assert await desk.ack(held[1]) == ["ACKED"]
    assert await desk.is_sound()


@pytest.mark.parametrize("how", ["acked", "given back", "lapsed again", "dropped"])
async def test_however_it_ends_nobody_owns_it_any_more(desk: Desk, held: list[str], how: str) -> None:
    await extended(desk, held[:1], owner=STREAM)
    assert await desk.ack(held[2]) == ["ACKED"]
    assert owned(desk) == {STREAM: 1}
    if how == "acked":
        assert await desk.ack(held[0]) == ["ACKED"]
    elif how == "given back":
        await desk.give_back(held[0], delay_ms=0)
    elif how == "lapsed again":
        desk.at(HOUR_MS + 1_000)
        await desk.sweep()
    else:
        await desk.store.drop_absent(desk.name, budget_s=BUDGET_S)
    assert (await desk.counts()).leased == 0
    assert not desk.raw.exists(desk.key("owners"), desk.key("held"))
    assert await desk.is_sound()


async def released(desk: Desk, leases: Sequence[str], *, owner: str) -> list[str]:
    """What is told of each that goes back if this stream owns it."""
    results = await desk.store.release(desk.name, leases, owned=True, owner=owner, budget_s=BUDGET_S)
    assert await desk.is_sound()
    return [one.settled.name for one in results]


async def test_named_at_the_end_of_a_stream_only_what_it_owns_goes_back(desk: Desk, held: list[str]) -> None:
    await extended(desk, held[:1], owner=STREAM)
    await extended(desk, held[1:2])
    assert await released(desk, held, owner=OTHER) == ["STALE"] * 3
    assert owned(desk) == {STREAM: 2}
    assert await released(desk, held, owner=STREAM) == ["RELEASED", "STALE", "RELEASED"]
    assert (await desk.counts()).leased == 1
    assert not desk.raw.exists(desk.key("owners"), desk.key("held"))
    assert await desk.ack(held[1]) == ["ACKED"]


async def test_named_at_the_end_of_a_stream_what_has_lapsed_may_still_be_taken_up_or_acked(
    desk: Desk, held: list[str]
) -> None:
    assert await released(desk, held[:2], owner=STREAM) == ["STALE", "STALE"]
    await extended(desk, held[:1])
    assert await desk.ack(held[1]) == ["ACKED"]
