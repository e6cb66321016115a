"""The last look of a wait at whose last try a foreign client had the role, in a process that hears nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from harness import eventually
from headwayd.domain.errors import RoleInUse, StoreUnavailable
from headwayd.domain.model import GetOrder, NewMessage, PutCode, PutOrder
from headwayd.engine.consumers import Consumers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.getting import Getting
from headwayd.engine.lines import Lines
from headwayd.engine.putting import Putting
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates
from integration.desk import BUDGET_S, Desk

PROCESS = "headway/exact/1/0"
WAIT_MS = 100
LOOK_MS = 1_500  # unlike any other try's
ROLES = pytest.mark.parametrize("role", ["consumer", "producer"])


class Deaf:
    """Calls that wait for a role, on a queue of which no change is heard."""

    def __init__(self, desk: Desk, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
        self._desk = desk
        self._monkeypatch = monkeypatch
        lines = Lines(lambda queue: desk.store.arm(queue, until_drained=False), tasks.spawn, kind="producers")
        self._putting = Putting(desk.store, lines, tasks.spawn, process=PROCESS)
        consumers = Consumers(desk.store, tasks.spawn, process=PROCESS)
        self._getting = Getting(consumers, Estimates(WaitEstimator), tasks.spawn)

    def lose(self, role: str) -> None:
        assert self._desk.raw.rpop(self._desk.key(f"{role}_free")) is not None

    def give_back(self, role: str) -> None:
        self._desk.raw.lpush(self._desk.key(f"{role}_free"), 0)

    def wait(self, role: str) -> asyncio.Task[Any]:
        """A Get or a Put that needs the role."""
        name = self._desk.name
        call: Awaitable[object]
        if role == "consumer":
            order = GetOrder(name, wait_ms=WAIT_MS, look_ms=LOOK_MS, lease_ms=60_000)
            call = self._getting.get(order, budget_s=BUDGET_S)
        else:
            put = PutOrder(name, [NewMessage(b"two")], wait_ms=WAIT_MS, look_ms=LOOK_MS)
            call = self._putting.put(put, budget_s=BUDGET_S)
        return asyncio.ensure_future(call)

    async def stands(self, role: str, count: int = 1) -> bool:
        counts = await self._desk.counts()
        return (counts.consumers_waiting if role == "consumer" else counts.producers_waiting) == count

    def change_look(self, role: str, change: Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]) -> None:
        """The last look, known by the time that it is given, goes through `change`, however soon it comes."""
        name = "get" if role == "consumer" else "put"
        step = getattr(self._desk.store, name)

        def once(*args: Any, budget_s: float, **fields: Any) -> Awaitable[object]:
            def this() -> Awaitable[object]:
                return step(*args, budget_s=budget_s, **fields)  # type: ignore[no-any-return]

            return change(this) if budget_s <= LOOK_MS / 1000 else this()

        self._monkeypatch.setattr(self._desk.store, name, once)


@pytest.fixture
async def deaf(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deaf]:
    tasks = Tasks()
    await desk.create()
    await desk.put(b"one")
    await desk.store.start()
    desk.store.on_hint(lambda _queue, _is_call: None)
    yield Deaf(desk, tasks, monkeypatch)
    await tasks.close()


@ROLES
async def test_it_takes_what_there_is(deaf: Deaf, desk: Desk, role: str) -> None:
    is_back = asyncio.Event()

    async def once_it_is_back(step: Callable[[], Awaitable[object]]) -> object:
        await is_back.wait()
        return await step()

    deaf.lose(role)
    deaf.change_look(role, once_it_is_back)
    waiting = deaf.wait(role)
    await eventually(lambda: deaf.stands(role))
    deaf.give_back(role)
    is_back.set()
    told = await waiting
    if role == "consumer":
        assert [delivery.payload for delivery in told.deliveries] == [b"one"]
        assert (await desk.counts()).leased == 1
    else:
        assert [outcome.code for outcome in told] == [PutCode.QUEUED]
        assert (await desk.counts()).length == 2
    assert await deaf.stands(role, 0)


@ROLES
async def test_it_tells_of_the_role_if_that_is_still_taken(deaf: Deaf, role: str) -> None:
    deaf.lose(role)
    with pytest.raises(RoleInUse):
        await deaf.wait(role)
    await eventually(lambda: deaf.stands(role, 0))
    deaf.give_back(role)


@ROLES
async def test_who_goes_away_during_it_has_taken_nothing_and_stands_there_no_more(
    deaf: Deaf, desk: Desk, role: str
) -> None:
    has_begun, goes_on, is_done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(step: Callable[[], Awaitable[object]]) -> object:
        has_begun.set()
        await goes_on.wait()
        try:
            return await step()
        finally:
            is_done.set()

    deaf.lose(role)
    deaf.change_look(role, slowly)
    waiting = deaf.wait(role)
    await has_begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if role == "consumer":
        deaf.give_back(role)
    else:
        await eventually(lambda: deaf.stands(role, 0))  # and the look puts it there again
    goes_on.set()
    await is_done.wait()
    await eventually(lambda: deaf.stands(role, 0))
    if role == "producer":
        deaf.give_back(role)

    async def is_untouched() -> bool:
        counts = await desk.counts()
        return (counts.length, counts.leased) == (1, 0)

    await eventually(is_untouched)


@ROLES
async def test_a_store_that_fails_it_is_told_as_failing(deaf: Deaf, role: str) -> None:
    async def failing(_step: Callable[[], Awaitable[object]]) -> object:
        raise StoreUnavailable("it is away")

    deaf.lose(role)
    deaf.change_look(role, failing)
    with pytest.raises(StoreUnavailable):
        await deaf.wait(role)
    deaf.give_back(role)
    await eventually(lambda: deaf.stands(role, 0))
