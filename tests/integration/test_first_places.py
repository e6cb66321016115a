"""What a stream that comes to stand in line is told first of its wait, where somebody stood there before."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from headwayd.domain.errors import StoreUnavailable
from headwayd.domain.standing import StandOrder, ToldPlace
from headwayd.engine.consumers import Consumers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.standing.standing import Standing
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates
from integration.desk import BUDGET_S, Desk

SEEN_S = 20


async def learned(desk: Desk) -> Estimates:
    """What is known of a queue in which a message came, and was leased, each second, until nobody stood there any
    more."""
    numbers = (await desk.store.footings(desk.name, [], stand_again=False, budget_s=BUDGET_S)).numbers
    estimates = Estimates(WaitEstimator)
    for second in range(SEEN_S):
        at_ms = numbers.at_ms + 1_000 * second
        look = replace(numbers, at_ms=at_ms, departures=second, consumers_waiting=1, consumers_ready=1)
        estimates.of(desk.name).observe(look)
    desk.at(1_000 * SEEN_S)
    return estimates


@pytest.mark.parametrize("befell", ["nothing", "a pause", "a new queue of the name", "a store that is silent"])
async def test_the_first_wait_is_that_of_the_line_as_it_is_now(
    desk: Desk, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, befell: str
) -> None:
    async def is_silent(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("silent")

    estimates = await learned(desk)
    if befell == "a pause":
        await desk.store.set_paused(desk.name, True, budget_s=BUDGET_S)
    elif befell == "a new queue of the name":
        await desk.store.delete(desk.name, budget_s=BUDGET_S)
        await desk.create()
    elif befell == "a store that is silent":
        monkeypatch.setattr(desk.store, "footings", is_silent)
    consumers = Consumers(desk.store, tasks.spawn, process="headway/exact/1/0")
    standing = Standing(consumers, tasks.spawn, max_bytes=10**6, estimates=estimates)
    async with aclosing(standing.stand(StandOrder(queue=desk.name), budget_s=BUDGET_S)) as told:
        first = await anext(told)
    assert isinstance(first, ToldPlace)
    assert first.standing.position == 1
    assert (first.standing.eta is not None) == (befell == "nothing")


async def test_a_step_that_is_taken_during_the_first_look_is_told(
    desk: Desk, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = Consumers(desk.store, tasks.spawn, process="headway/exact/1/0")
    standing = Standing(consumers, tasks.spawn, max_bytes=10**6, estimates=Estimates(WaitEstimator))
    order, look = StandOrder(queue=desk.name), desk.store.footings
    looking, goes_on = asyncio.Event(), asyncio.Event()

    async def held(queue: str, waiters: Any, **how: Any) -> Any:
        if not waiters:
            looking.set()
            await goes_on.wait()
        return await look(queue, waiters, **how)

    before = standing.stand(order, budget_s=BUDGET_S)
    await anext(before)
    monkeypatch.setattr(desk.store, "footings", held)
    async with aclosing(standing.stand(order, budget_s=BUDGET_S)) as told, asyncio.timeout(4):
        first = asyncio.ensure_future(anext(told))
        await looking.wait()
        await before.aclose()
        desk.raw.zremrangebyrank(desk.key("consumers"), 0, 0)  # nor comes it back to its place
        goes_on.set()
        positions = []
        for one in (first, anext(told)):
            place = await one
            assert isinstance(place, ToldPlace)
            positions.append(place.standing.position)
        assert positions == [2, 1]
