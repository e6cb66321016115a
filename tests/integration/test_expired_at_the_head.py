"""Messages that have expired and stand before others: a Get takes away so many of them in a step, and no more, and is
given what stands behind them all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from harness import eventually
from headwayd.domain.errors import StoreUnavailable
from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from headwayd.engine.consumers import Consumers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.getting import Getting
from headwayd.engine.ports import Wait
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates
from headwayd.store import keys
from integration.desk import BUDGET_S, Desk
from integration.test_asking_together import HERE, line, standing
from integration.test_exact_instants import listening

AT_ONCE = 500  # as lua/include/due.lua has it: so many are looked for by their time, and so many at the head
MOST = 2 * AT_ONCE + 64  # of a step: those at the head are taken by 64
MORE_COMMANDS = 16
PART = 1_000


async def put_old(desk: Desk, count: int, *, size: int = 3) -> None:
    """So many that have expired when the clock is at 2,000, and one behind them that has not."""
    for start in range(0, count, PART):
        await desk.put(*[b"x" * size] * min(PART, count - start), time_to_live_ms=1_000)
    await desk.put(b"live")
    desk.at(2_000)


async def left_of(desk: Desk) -> int:
    return (await desk.counts()).length


async def test_a_step_takes_away_so_many_and_says_that_more_may_be_had(desk: Desk) -> None:
    await desk.create()
    await put_old(desk, 3 * MOST)
    step = await desk.store.get(GetOrder(desk.name), budget_s=BUDGET_S)
    assert (list(step.deliveries), step.wait, step.left) == ([], Wait.EMPTY, 1)
    assert 2 * MOST < await left_of(desk) <= 3 * MOST + 1 - 2 * AT_ONCE
    assert await desk.is_sound()


async def test_a_step_costs_no_more_the_more_have_expired(desk: Desk, figure: Callable[[str, object], None]) -> None:
    async def commands(of: Desk, count: int) -> int:
        await of.create()
        await put_old(of, count)
        before = of.commands()
        await of.take()
        return of.commands() - before

    few = await commands(desk, 2 * MOST)
    other = Desk(desk.store, desk.raw, f"{desk.name}-more")
    try:
        many = await commands(other, 20 * MOST)
    finally:
        await desk.store.delete(other.name, budget_s=BUDGET_S)
    figure(f"commands of a Get at {2 * MOST:,} / {20 * MOST:,} that have expired", f"{few} / {many}")
    assert many <= few + MORE_COMMANDS


@pytest.mark.parametrize("must_fit", [False, True], ids=["of any size", "that fits"])
async def test_what_has_expired_does_not_count_for_what_the_answer_holds(desk: Desk, must_fit: bool) -> None:
    await desk.create()
    await put_old(desk, AT_ONCE + 300, size=1_000)
    order = GetOrder(desk.name, max_messages=10, max_bytes=5_000, must_fit=must_fit)
    [delivery] = (await desk.store.get(order, budget_s=BUDGET_S)).deliveries
    assert delivery.payload == b"live"


async def test_what_does_not_fit_is_large_though_what_stood_before_it_has_expired(desk: Desk) -> None:
    await desk.create()
    await desk.put(*[b"old"] * (AT_ONCE + 1), time_to_live_ms=1_000)
    await desk.put(b"x" * 100)
    desk.at(2_000)
    step = await desk.store.get(GetOrder(desk.name, max_bytes=50, must_fit=True), budget_s=BUDGET_S)
    assert (list(step.deliveries), step.wait, step.left) == ([], Wait.LARGE, 0)
    assert await left_of(desk) == 1


async def test_who_waits_is_called_again_and_keeps_its_place_while_it_comes(desk: Desk) -> None:
    """Whoever leaves its turn untaken for two seconds is dropped."""
    await desk.create()
    waiter = Waiter(name=f"{HERE}#1")
    with listening(desk, keys.WAKE_CHANNEL + HERE) as heard:
        await put_old(desk, 5 * MOST)
        for at_ms in range(2_000, 6_000, 900):
            desk.at(at_ms)
            step = await desk.store.get(GetOrder(desk.name), waiter=waiter, budget_s=BUDGET_S)
            assert (list(step.deliveries), step.position, step.was_dropped) == ([], 1, False)
            assert line(desk) == [waiter.name]
            assert heard.get_message(timeout=5) is not None
            waiter = waiter._replace(number=step.number, generation=step.generation)
        [delivery] = (await desk.store.get(GetOrder(desk.name), waiter=waiter, budget_s=BUDGET_S)).deliveries
        assert delivery.payload == b"live"
        assert line(desk) == []


async def test_what_has_expired_is_nothing_for_those_who_stand_before(desk: Desk) -> None:
    await desk.create()
    with listening(desk, keys.WAKE_CHANNEL + HERE):
        [waiter] = await standing(desk, 1)
        await put_old(desk, AT_ONCE + 1)
        step = await desk.store.get(GetOrder(desk.name), budget_s=BUDGET_S)
        assert (list(step.deliveries), step.wait, step.left) == ([], Wait.LINE, 0)
        [delivery] = (await desk.store.get(GetOrder(desk.name), waiter=waiter, budget_s=BUDGET_S)).deliveries
        assert delivery.payload == b"live"


@pytest.fixture
async def getting(desk: Desk) -> AsyncIterator[Getting]:
    tasks = Tasks()
    await desk.store.start()
    consumers = Consumers(desk.store, tasks.spawn, process="headway/exact/1/0")
    desk.store.on_hint(lambda queue, is_call: consumers.lines.kick(queue or desk.name, is_call=is_call))
    yield Getting(consumers, Estimates(WaitEstimator), tasks.spawn)
    await tasks.close()


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_a_get_is_given_what_is_behind_them(desk: Desk, getting: Getting, wait_ms: int) -> None:
    await desk.create()
    await desk.put(b"settled")
    first = await desk.take_one(lease_ms=60_000)
    await put_old(desk, 2 * MOST + 200)
    order = GetOrder(desk.name, wait_ms=wait_ms, lease_ms=60_000, ack=[first.lease])
    told = await getting.get(order, budget_s=BUDGET_S)
    assert [settlement.settled.name for settlement in told.settled] == ["ACKED"]
    assert [delivery.payload for delivery in told.deliveries] == [b"live"]
    assert await left_of(desk) == 0
    assert await desk.is_sound()


async def test_a_get_that_keeps_its_place_is_given_it_too(desk: Desk, getting: Getting) -> None:
    await desk.create()
    await put_old(desk, 2 * MOST + 200)
    told = await getting.get(GetOrder(desk.name, stands=True, lease_ms=60_000), budget_s=BUDGET_S)
    assert told.standing is None
    assert [delivery.payload for delivery in told.deliveries] == [b"live"]
    assert line(desk) == []


async def test_a_get_of_nothing_but_what_has_expired_is_empty(desk: Desk, getting: Getting) -> None:
    await desk.create()
    for _ in range(3):
        await desk.put(*[b"old"] * PART, time_to_live_ms=1_000)
    desk.at(2_000)
    assert list((await getting.get(GetOrder(desk.name), budget_s=BUDGET_S)).deliveries) == []
    assert await left_of(desk) == 0


@pytest.mark.parametrize("stands", [False, True], ids=["at once", "that keeps its place"])
async def test_a_get_that_has_no_time_left_does_not_call_the_queue_empty(
    desk: Desk, getting: Getting, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    await desk.create()
    await put_old(desk, 2 * MOST)
    get = desk.store.get

    async def once(order: GetOrder, *, budget_s: float, waiter: Waiter | None = None) -> object:
        monkeypatch.setattr(desk.store, "get", away)
        return await get(order, budget_s=budget_s, waiter=waiter)

    async def away(*_: object, **__: object) -> object:
        raise StoreUnavailable("no time is left")

    async def nobody_stands() -> bool:
        return line(desk) == []

    monkeypatch.setattr(desk.store, "get", once)
    with pytest.raises(StoreUnavailable):
        await getting.get(GetOrder(desk.name, stands=stands), budget_s=BUDGET_S)
    await eventually(nobody_stands)
