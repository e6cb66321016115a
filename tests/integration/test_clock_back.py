"""When the store's clock has gone back, as by a failover, nobody is waited for, or kept waiting, as much longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwayd.domain.errors import PlaceLost, PollTooSoon, QueueDeleted
from headwayd.domain.hints import LONGEST_POLL_MAX_MS, PollHints, poll_hints
from headwayd.domain.model import GetOrder, Policy
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import GetStep
from headwayd.store import keys
from integration.desk import BUDGET_S, HOUR_MS, Desk
from integration.test_exact_instants import listening

PLACE = "@first"
GRACE_MS = 1_000
POLICIES = [
    Policy(place_grace_ms=GRACE_MS),
    Policy(place_grace_ms=GRACE_MS, poll_base_ms=600_000, poll_max_ms=600_000),
]
polls = pytest.mark.parametrize("policy", POLICIES, ids=["usual polls", "rarest polls"])


@pytest.fixture(autouse=True)
def processes_are_heard(desk: Desk) -> Iterator[None]:
    """Whose process nobody hears is dropped from the line."""
    with listening(desk, keys.WAKE_CHANNEL + "here"), listening(desk, keys.WAKE_CHANNEL + "hung"):
        yield


async def create(desk: Desk, policy: Policy) -> PollHints:
    """A queue, and the hints for its first consumer."""
    await desk.create(
        place_grace_ms=policy.place_grace_ms, poll_base_ms=policy.poll_base_ms, poll_max_ms=policy.poll_max_ms
    )
    return poll_hints(policy, 1)


async def get(desk: Desk, name: str, *, place: str = "") -> GetStep:
    """This waiter tries; if it names a place it polls."""
    order = GetOrder(queue=desk.name, stands=bool(place), place=place)
    return await desk.store.get(order, waiter=Waiter(name=name, place=place), budget_s=BUDGET_S)


async def poll(desk: Desk, hints: PollHints, *, is_first: bool = False) -> None:
    """One who finds nothing, and whose place is kept."""
    step = await get(desk, "here#1", place="" if is_first else PLACE)
    waiter = Waiter(name="here#1", number=step.number, generation=step.generation)
    await desk.store.keep_place(desk.name, waiter, PLACE, hints, budget_s=BUDGET_S)


@polls
async def test_a_poll_in_time_is_not_too_soon(desk: Desk, policy: Policy) -> None:
    hints = await create(desk, policy)
    await poll(desk, hints, is_first=True)
    with pytest.raises(PollTooSoon):
        await poll(desk, hints)
    for at_ms in (-HOUR_MS, -2 * HOUR_MS, -3 * HOUR_MS, -4 * HOUR_MS):
        desk.at(at_ms)
        await poll(desk, hints)
    with pytest.raises(PollTooSoon) as told:
        await poll(desk, hints)
    assert told.value.retry_after_ms == hints.poll_min_ms
    assert await desk.is_sound()


@polls
async def test_a_poller_that_does_not_come_again_loses_its_place(desk: Desk, policy: Policy) -> None:
    hints = await create(desk, policy)
    await poll(desk, hints, is_first=True)
    await get(desk, "here#2")
    desk.at(-HOUR_MS)
    await desk.put(b"1")
    assert not (await get(desk, "here#2")).deliveries
    desk.at(-HOUR_MS + hints.poll_max_ms)
    await desk.sweep()
    assert not (await get(desk, "here#2")).deliveries, "it may come yet"
    desk.at(-HOUR_MS + LONGEST_POLL_MAX_MS + GRACE_MS + 2)
    await desk.sweep()
    assert len((await get(desk, "here#2")).deliveries) == 1
    with pytest.raises(PlaceLost):
        await get(desk, "here#1", place=PLACE)
    assert await desk.is_sound()


async def test_a_consumer_that_lets_its_turn_pass_is_passed_over(desk: Desk) -> None:
    await desk.create()
    await get(desk, "hung#1")
    await get(desk, "here#2")
    await desk.put(b"1")
    for at_ms, delivered in ((0, 0), (1_999, 0), (2_000, 1)):
        desk.at(-HOUR_MS + at_ms)
        await desk.sweep()
        assert len((await get(desk, "here#2")).deliveries) == delivered


async def test_a_producer_that_lets_its_turn_pass_is_passed_over(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"1")
    await desk.put(b"hung", waiter="hung#1")
    behind = await desk.put(b"2", waiter="here#2")
    await desk.take_one(lease_ms=HOUR_MS)
    for at_ms, accepted in ((0, 0), (2_000, 0), (2_001, 1)):
        desk.at(-HOUR_MS + at_ms)
        step = await desk.put(b"2", waiter="here#2", line_ticket=behind.line_ticket)
        assert len(step.outcomes) == accepted


async def test_a_deletion_that_a_foreign_client_left_half_done_is_waited_for_no_longer(desk: Desk) -> None:
    await desk.create()
    desk.raw.delete(desk.key("bound"))
    desk.raw.lpush(desk.key("closed"), 0, 0)
    for at_ms in (0, -HOUR_MS, -HOUR_MS + 499):
        desk.at(at_ms)
        with pytest.raises(QueueDeleted):
            await desk.create()
    desk.at(-HOUR_MS + 500)
    await desk.create()
    assert (await desk.counts()).length == 0
