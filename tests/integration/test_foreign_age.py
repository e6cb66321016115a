"""What foreign clients put gets the queue's time to live, whatever is put behind it before it has got that."""

from __future__ import annotations

import pytest

from headwayd.domain.model import Policy
from integration.desk import BUDGET_S, Desk

TTL_MS = 10_000
AGED_AT_ONCE = 1_000  # as lua/include/queue.lua has it
MANY = 2 * AGED_AT_ONCE + 500


def push(desk: Desk, count: int) -> None:
    """As a stock client does it, and counts it."""
    desk.raw.lpush(desk.key("q"), *[b"foreign"] * count)
    desk.raw.incrby(desk.key("produced_messages"), count)


async def expire_all(desk: Desk) -> None:
    """Everything that is due now."""
    for _ in range(20):
        await desk.sweep()


@pytest.fixture
async def mortal(desk: Desk) -> Desk:
    await desk.create(time_to_live_ms=TTL_MS, max_attempts=1)
    await desk.put(b"first")  # so that Headway knows the queue
    await desk.ack((await desk.take_one()).lease)
    return desk


@pytest.mark.parametrize("name", ["", "id"], ids=["bare", "with-id"])
async def test_what_foreign_clients_put_expires_though_something_is_put_behind_it(mortal: Desk, name: str) -> None:
    push(mortal, MANY)
    await mortal.put(b"own", ids=[name], time_to_live_ms=2 * TTL_MS)
    assert (await mortal.counts()).length == MANY + 1
    for _ in range(3):
        await mortal.sweep()
    mortal.at(TTL_MS)
    await expire_all(mortal)
    counts = await mortal.counts()
    assert (counts.length, counts.expired) == (1, MANY)
    assert await mortal.is_sound()
    mortal.at(2 * TTL_MS - 1)
    await expire_all(mortal)
    assert (await mortal.counts()).length == 1
    mortal.at(2 * TTL_MS)
    await expire_all(mortal)
    assert (await mortal.counts()).length == 0
    assert await mortal.is_sound()


async def test_what_foreign_clients_put_expires_with_what_is_put_behind_it(mortal: Desk) -> None:
    push(mortal, MANY)
    await mortal.put(b"own")
    for _ in range(3):
        await mortal.sweep()
    mortal.at(TTL_MS)
    await expire_all(mortal)
    counts = await mortal.counts()
    assert (counts.length, counts.expired) == (0, MANY + 1)


async def test_nothing_that_is_put_behind_while_nothing_expires_gets_a_time_later(mortal: Desk) -> None:
    push(mortal, MANY)
    await mortal.counts()
    await mortal.store.update(mortal.name, Policy(time_to_live_ms=0), ["time_to_live_ms"], budget_s=BUDGET_S)
    await mortal.put(b"own")
    await mortal.store.update(mortal.name, Policy(time_to_live_ms=TTL_MS), ["time_to_live_ms"], budget_s=BUDGET_S)
    for _ in range(3):
        await mortal.sweep()
    mortal.at(TTL_MS)
    await expire_all(mortal)
    assert [seen.payload for seen in await mortal.take(MANY)][-1:] == [b"own"]


async def test_what_is_put_behind_keeps_its_own_time(mortal: Desk) -> None:
    """Less than the queue's, more, and none: what was redriven does not expire."""
    await mortal.put(b"dead", ids=["dead"])
    await mortal.give_back((await mortal.take_one()).lease)
    push(mortal, 2 * MANY)
    await mortal.store.redrive(mortal.name, "", message_ids=[], most=500, budget_s=BUDGET_S)
    await mortal.put(b"short", ids=["short"], time_to_live_ms=1_000)
    await mortal.put(b"long", b"gone", ids=["long", "gone"], time_to_live_ms=3 * TTL_MS)
    assert await mortal.withdraw("gone") == [""]
    for _ in range(4):
        await mortal.sweep()
    left = {}
    for ms in (1_000, TTL_MS, 3 * TTL_MS):
        mortal.at(ms)
        await expire_all(mortal)
        assert await mortal.is_sound()
        counts = await mortal.counts()
        left[ms] = counts.length
    assert left == {1_000: 2 * MANY + 2, TTL_MS: 2, 3 * TTL_MS: 1}
    [delivery] = await mortal.take()
    assert delivery.payload == b"dead"


async def test_a_put_costs_nothing_more_when_all_have_their_time(mortal: Desk) -> None:
    await mortal.put(b"x")
    before = mortal.commands()
    await mortal.put(b"x")
    usual = mortal.commands() - before
    push(mortal, 2)
    await mortal.put(b"x")
    before = mortal.commands()
    await mortal.put(b"x")
    assert mortal.commands() - before == usual
