"""Gets that wait by a name, one of whose tries lost its answer: what they are told if no later one is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.errors import HeadwayError, OutcomeUnknown, ShuttingDown, StoreUnavailable, Unauthenticated
from headwayd.domain.model import GetOrder
from headwayd.domain.waiting import CutOff
from headwayd.engine.consumers import Consumers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.getting import Getting
from headwayd.engine.ports import GetStep, Store
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates
from integration.desk import BUDGET_S, HOUR_MS, Desk

PROCESS = "headway/exact/1/0"
NAME = "attempt 7"
WAIT_MS = 3_000
LONG_MS = 60_000
AWAY = StoreUnavailable("the store cannot be reached", metadata={"cause": "REFUSED"})
LOST = OutcomeUnknown("the store's answer was lost; it may have happened", metadata={"cause": "RESET"})


class Torn:
    """A store at which a message comes behind the first Get by a name. The answer to the second is lost, of which the
    store heard if `hears`; those behind it fail with `trouble` if there is any. `asked` and `failed` count them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.hears = True
        self.trouble: HeadwayError | None = AWAY
        self.asked = self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk.store, name)

    async def get(self, order: GetOrder, **told: Any) -> GetStep:
        if not order.attempt_id:
            return await self._desk.store.get(order, **told)
        number = self.asked + 1
        if number > 2 and self.trouble is not None:
            self.asked, self.failed = number, self.failed + 1
            raise self.trouble
        step = GetStep((), ()) if number == 2 and not self.hears else await self._desk.store.get(order, **told)
        self.asked = number
        if number == 1:
            await self._desk.put(b"one")
        elif number == 2:
            raise LOST
        return step


@dataclass
class Waiting:
    """Gets at such a store."""

    store: Torn
    consumers: Consumers
    getting: Getting


@pytest.fixture
async def waiting(desk: Desk) -> AsyncIterator[Waiting]:
    tasks = Tasks()
    await desk.create()
    await desk.store.start()
    store = Torn(desk)
    consumers = Consumers(cast(Store, store), tasks.spawn, process=PROCESS)
    desk.store.on_hint(lambda queue, is_call: consumers.lines.kick(queue or desk.name, is_call=is_call))
    yield Waiting(store, consumers, Getting(consumers, Estimates(WaitEstimator), tasks.spawn))
    await tasks.close()


def order(desk: Desk, wait_ms: int, *, name: str = NAME, cut_off: CutOff | None = None) -> GetOrder:
    return GetOrder(
        desk.name, wait_ms=wait_ms, lease_ms=HOUR_MS, look_ms=1_000, max_bytes=10**7, attempt_id=name, cut_off=cut_off
    )


@pytest.mark.parametrize("end", ["its time is over", "it is cut off", "the process goes down"])
async def test_that_it_is_unknown_is_told_however_the_wait_ends(desk: Desk, waiting: Waiting, end: str) -> None:
    cut_off = CutOff()
    wait_ms = WAIT_MS if end == "its time is over" else LONG_MS
    call = asyncio.ensure_future(waiting.getting.get(order(desk, wait_ms, cut_off=cut_off), budget_s=BUDGET_S))
    await eventually(lambda: waiting.store.failed > 1)
    if end == "it is cut off":
        cut_off.end(Unauthenticated("the token has expired"))
    elif end == "the process goes down":
        waiting.consumers.lines.fail_all(ShuttingDown("it goes down"))
    with pytest.raises(OutcomeUnknown) as said:
        await call
    assert said.value.metadata == {"cause": "RESET"}
    assert (await desk.counts()).leased == 1
    waiting.store.trouble = None
    if end != "the process goes down":
        told = await waiting.getting.get(order(desk, LONG_MS), budget_s=BUDGET_S)
        assert [(delivery.payload, delivery.attempt) for delivery in told.deliveries] == [(b"one", 1)]


async def test_a_later_try_that_is_answered_brings_what_it_had_leased(desk: Desk, waiting: Waiting) -> None:
    call = asyncio.ensure_future(waiting.getting.get(order(desk, LONG_MS), budget_s=BUDGET_S))
    await eventually(lambda: waiting.store.failed > 1)
    waiting.store.trouble = None
    assert [(delivery.payload, delivery.attempt) for delivery in (await call).deliveries] == [(b"one", 1)]


async def test_a_later_try_that_is_answered_with_nothing_makes_it_known(desk: Desk, waiting: Waiting) -> None:
    store, cut_off = waiting.store, CutOff()
    store.hears = False
    call = asyncio.ensure_future(waiting.getting.get(order(desk, LONG_MS, cut_off=cut_off), budget_s=BUDGET_S))
    await eventually(lambda: store.failed > 1)
    await desk.store.set_paused(desk.name, True, budget_s=BUDGET_S)
    store.trouble = None
    await eventually(lambda: store.asked > 2 + store.failed)
    cut_off.end(Unauthenticated("the token has expired"))
    with pytest.raises(Unauthenticated):
        await call
    assert (await desk.counts()).leased == 0


async def test_others_in_line_are_told_that_the_store_was_away(desk: Desk, waiting: Waiting) -> None:
    waiting.store.trouble = LOST
    call = asyncio.ensure_future(waiting.getting.get(order(desk, LONG_MS), budget_s=BUDGET_S))
    await eventually(lambda: waiting.store.failed > 1)
    with pytest.raises(StoreUnavailable) as said:
        await waiting.getting.get(order(desk, 500, name=""), budget_s=BUDGET_S)
    assert said.value.metadata == {"cause": "REFUSED"}
    assert "may have happened" not in said.value.text
    call.cancel()
    await asyncio.wait([call])
