"""Gets of one name by several callers: whose are the leases to give back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from itertools import permutations
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.model import NO_ASKER, GetOrder
from headwayd.engine.consumers import Consumers
from headwayd.engine.ports import GetStep, Store
from headwayd.engine.tasks import Tasks
from integration.desk import BUDGET_S, HOUR_MS, Desk

NAME = "attempt 7"


async def asked(desk: Desk, asker: str) -> list[str]:
    """The leases that one is given for the name."""
    order = GetOrder(
        queue=desk.name, max_messages=3, lease_ms=HOUR_MS, max_bytes=10**7, attempt_id=NAME, asker=_bytes_of(asker)
    )
    return [delivery.lease for delivery in (await desk.store.get(order, budget_s=BUDGET_S)).deliveries]


async def gone(desk: Desk, asker: str, leases: Sequence[str]) -> list[str]:
    """What becomes of them when this one goes away."""
    claim = _bytes_of(asker) + NAME.encode()
    settled = await desk.store.release(desk.name, leases, claim=claim, budget_s=BUDGET_S)
    return [one.settled.name for one in settled]


def _bytes_of(asker: str) -> bytes:
    return asker.encode().rjust(len(NO_ASKER), b"\0")


def kept(desk: Desk) -> bytes:
    """What is kept of the name."""
    entry = desk.raw.hget(desk.key("attempts"), NAME)
    assert isinstance(entry, bytes)
    return entry


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


class Slow:
    """A store that Gets, counted in `asked`, come to when `may_go` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0
        self.may_go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, order: GetOrder, **told: Any) -> GetStep:
        self.asked += 1
        await self.may_go.wait()
        return await self._store.get(order, **told)


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


async def test_one_that_was_given_up_and_comes_late_takes_nothing_from_one_that_was_answered(
    desk: Desk, tasks: Tasks
) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    store = Slow(desk.store)
    consumers = Consumers(cast(Store, store), tasks.spawn, process="here")
    order = GetOrder(queue=desk.name, max_messages=3, lease_ms=HOUR_MS, attempt_id=NAME)
    consumer = consumers.enter(order, budget_s=BUDGET_S, waits=False)
    call = asyncio.create_task(consumers.first_try(consumer, BUDGET_S))
    await eventually(lambda: store.asked == 1)
    call.cancel()
    await asyncio.wait([call])
    leases = await asked(desk, "b")
    assert len(leases) == 3
    store.may_go.set()
    await tasks.drain(10)
    settled = await desk.store.extend(desk.name, leases, HOUR_MS, budget_s=BUDGET_S)
    assert [one.settled.name for one in settled] == ["EXTENDED"] * 3


@pytest.mark.parametrize("ids", [(), ("1", "2", "3")], ids=["payloads", "with ids"])
@pytest.mark.parametrize("order", [*permutations("abc")], ids="".join)
async def test_of_several_who_asked_the_last_to_go_gives_it_back(
    desk: Desk, ids: Sequence[str], order: Sequence[str]
) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=ids)
    leases = await asked(desk, "a")
    assert len(leases) == 3
    for asker in "bcb":
        assert await asked(desk, asker) == leases
    *others, last = order
    for asker in others * 2:
        assert await gone(desk, asker, leases) == ["STALE"] * 3
    assert await desk.is_sound()
    assert await gone(desk, last, leases) == ["RELEASED"] * 3
    assert await desk.is_sound()
    assert [(one.payload, one.attempt) for one in await desk.take(3)] == [(b"1", 1), (b"2", 1), (b"3", 1)]


async def test_what_goes_back_step_by_step_goes_back_whole(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = await asked(desk, "a")
    assert await asked(desk, "b") == leases
    assert await gone(desk, "a", leases) == ["STALE"] * 3
    assert [await gone(desk, "b", [lease]) for lease in reversed(leases)] == [["RELEASED"]] * 3


async def test_what_very_many_asked_for_stays_and_they_take_no_room(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    askers = [str(number) for number in range(200)]
    leases = await asked(desk, askers[0])
    size = 0
    for asker in askers[1:]:
        assert await asked(desk, asker) == leases
        size = max(size, len(kept(desk)))
    assert size < 600
    for asker in askers:
        assert await gone(desk, asker, leases) == ["STALE"] * 3


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
    assert re.fullmatch(rb"(\d+)-(\d+)", kept(desk)[16:])
    assert await asked(desk, "b") == leases
    assert [int(number) for number in re.findall(rb"\d+", kept(desk)[16:])] == [1, 2, 3]


async def test_what_another_version_noted_as_asked_again_stays(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = await asked(desk, "a")
    before = kept(desk)
    assert await asked(desk, "b") == leases
    desk.raw.hset(desk.key("attempts"), NAME, before)
    for asker in "ab":
        assert await gone(desk, asker, leases) == ["STALE"] * 3


async def test_what_another_version_leased_first_stays(desk: Desk) -> None:
    """Its leases tell of no asker, and its own release is none that takes one away."""
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    leases = [one.lease for one in await desk.take(3, lease_ms=HOUR_MS, attempt_id=NAME)]
    assert await asked(desk, "b") == leases
    assert await gone(desk, "b", leases) == ["STALE"] * 3
