"""Stopping: what a Get is given after its caller went away is given back before the engine has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import cast

import pytest

from headwayd.domain.limits import Limits
from headwayd.domain.model import Delivery, GetOrder, Settlement, StoreFacts
from headwayd.domain.standing import Waiter
from headwayd.engine.engine import Engine
from headwayd.engine.ports import GetStep, OwnNames, Store

DELIVERY = Delivery(
    id="one",
    payload=b"one",
    headers=b"",
    lease="the lease",
    lease_expires_at_ms=1,
    attempt=1,
    ticket=1,
    put_at_ms=None,
    waited_ms=None,
)


class SlowStore:
    """A store whose answer to the last Get is on its way until `answer` is set. Only what these tests need."""

    def __init__(self, *, empty_tries: int) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.released: list[str] = []
        self.facts = StoreFacts(is_reachable=True)
        self._empty_tries = empty_tries
        self.quiet_at_once = 1

    def on_hint(self, listener: object) -> None: ...

    def on_due(self, listener: object) -> None: ...

    def on_reconnect(self, listener: object) -> None: ...

    def on_standing(self, listener: object) -> None: ...

    def on_blocked(self, listener: object) -> None: ...

    async def processes(self, *, budget_s: float) -> frozenset[str]:
        return frozenset({"test"})

    async def stop_standing(self, queue: str, waiter: str, *, keeps_leases: bool = False, budget_s: float) -> None: ...

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames:
        return OwnNames((), None)

    async def arm(self, queue: str, *, until_drained: bool) -> bool:
        return True

    async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
        return ()

    async def get(self, order: GetOrder, *, budget_s: float, waiter: Waiter | None = None) -> GetStep:
        if self._empty_tries:
            self._empty_tries -= 1
            return GetStep(deliveries=(), settled=())
        self.asked.set()
        await self.answer.wait()
        return GetStep(deliveries=(DELIVERY,), settled=())

    async def release(
        self,
        queue: str,
        leases: Sequence[str],
        *,
        budget_s: float,
        owned: bool = False,
        owner: str = "",
        claim: bytes = b"",
    ) -> Sequence[Settlement]:
        await asyncio.sleep(0.05)  # the store takes its time
        self.released += leases
        return []

    def ticket_of(self, lease: str) -> int:
        return 0


@pytest.mark.parametrize("wait_ms", [0, 60_000], ids=["at once", "waiting"])
async def test_what_a_vanished_caller_is_given_is_given_back_before_the_engine_has_stopped(wait_ms: int) -> None:
    store = SlowStore(empty_tries=1 if wait_ms else 0)
    engine = Engine(cast(Store, store), process="test", limits=Limits())
    await engine.start()
    order = GetOrder(queue="jobs", max_messages=1, lease_ms=0, wait_ms=wait_ms)
    caller = asyncio.create_task(engine.get(order, budget_s=2))
    async with asyncio.timeout(5):
        await store.asked.wait()
        caller.cancel()
        await asyncio.wait({caller})
        await engine.drain()
        stopping = asyncio.create_task(engine.stop())
        for _ in range(5):
            await asyncio.sleep(0)
        store.answer.set()
        await stopping
    assert store.released == ["the lease"]


async def test_the_release_that_is_under_way_when_the_engine_stops_is_waited_for() -> None:
    store = SlowStore(empty_tries=0)
    engine = Engine(cast(Store, store), process="test", limits=Limits())
    await engine.start()
    caller = asyncio.create_task(engine.get(GetOrder(queue="jobs", max_messages=1, lease_ms=0), budget_s=2))
    async with asyncio.timeout(5):
        await store.asked.wait()
        caller.cancel()
        await asyncio.wait({caller})
        store.answer.set()
        await asyncio.sleep(0)  # the answer comes just before the stop
        await engine.stop()
    assert store.released == ["the lease"]
