"""Gets of one name by several callers: whose are the leases to give back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.model import GetOrder
from headwayd.engine.consumers import Consumers
from headwayd.engine.ports import GetStep, Store
from headwayd.engine.tasks import Tasks
from integration.desk import BUDGET_S, HOUR_MS, Desk

NAME = "attempt 7"


async def asked(desk: Desk, asker: str) -> list[str]:
    """The leases that one is given for the name."""
    order = GetOrder(
        queue=desk.name, max_messages=3, lease_ms=HOUR_MS, max_bytes=10**7, attempt_id=NAME, asker=asker * 8
    )
    return [delivery.lease for delivery in (await desk.store.get(order, budget_s=BUDGET_S)).deliveries]


async def gone(desk: Desk, asker: str, leases: Sequence[str]) -> list[str]:
    """What becomes of them when this one goes away."""
    settled = await desk.store.release(desk.name, leases, claim=asker * 8 + NAME, budget_s=BUDGET_S)
    return [one.settled.name for one in settled]


class Late:
    """A store whose answers to Gets, counted in `answered`, come when `may_come` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answered = 0
        self.may_come = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, order: GetOrder, **told: Any) -> GetStep:
        step = await self._store.get(order, **told)
        self.answered += 1
        await self.may_come.wait()
        return step


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    yield tasks
    await tasks.close()


async def test_callers_who_all_go_away_before_they_are_answered_give_it_back(desk: Desk, tasks: Tasks) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    store = Late(desk.store)
    consumers = Consumers(cast(Store, store), tasks.spawn, process="here")
    order = GetOrder(queue=desk.name, max_messages=3, lease_ms=HOUR_MS, attempt_id=NAME)
    calls = []
    for _ in range(2):
        consumer = consumers.enter(order, budget_s=BUDGET_S, waits=False)
        calls.append(asyncio.create_task(consumers.first_try(consumer, BUDGET_S)))
        await eventually(lambda: store.answered == len(calls))
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert (await desk.counts()).leased == 3
    store.may_come.set()
    await tasks.drain(10)
    counts = await desk.counts()
    assert (counts.leased, counts.length) == (0, 3)


@pytest.mark.parametrize("ids", [(), ("1", "2", "3")], ids=["payloads", "with ids"])
async def test_of_several_who_asked_the_last_gives_it_back(desk: Desk, ids: Sequence[str]) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=ids)
    leases = await asked(desk, "a")
    assert len(leases) == 3
    for asker in "bcb":
        assert await asked(desk, asker) == leases
    for asker in "ac":
        assert await gone(desk, asker, leases) == ["STALE"] * 3
    assert await desk.is_sound()
    assert await gone(desk, "b", leases) == ["RELEASED"] * 3
    assert await desk.is_sound()
    assert [(one.payload, one.attempt) for one in await desk.take(3)] == [(b"1", 1), (b"2", 1), (b"3", 1)]


async def test_one_that_had_to_ask_twice_gives_back_what_it_has(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = await asked(desk, "a")
    assert await asked(desk, "a") == leases
    assert await gone(desk, "a", leases) == ["RELEASED"] * 3


async def test_what_was_asked_once_is_given_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    assert await gone(desk, "a", await asked(desk, "a")) == ["RELEASED"] * 3


async def test_a_version_that_knows_of_no_askers_finds_all_leases(desk: Desk) -> None:
    """It takes each number behind the first 16 bytes for a ticket."""
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = await asked(desk, "a")
    assert await asked(desk, "b") == leases
    kept = desk.raw.hget(desk.key("attempts"), NAME)
    assert isinstance(kept, bytes)
    assert [int(number) for number in re.findall(rb"\d+", kept[16:])] == [1, 2, 3]


async def test_what_another_version_noted_as_asked_again_stays(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = await asked(desk, "a")
    kept = desk.raw.hget(desk.key("attempts"), NAME)
    assert isinstance(kept, bytes)
    assert await asked(desk, "b") == leases
    desk.raw.hset(desk.key("attempts"), NAME, kept)
    for asker in "ab":
        assert await gone(desk, asker, leases) == ["STALE"] * 3
