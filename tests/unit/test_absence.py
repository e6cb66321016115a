"""What a process that has gone left standing is tidied away, also if the store is away just then."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from harness import eventually
from headwayd.domain.errors import NewerLayout, QueueNotFound, StoreUnavailable
from headwayd.engine import absence
from headwayd.engine.absence import Absence
from headwayd.engine.ports import OwnNames, Store
from headwayd.engine.tasks import Tasks

HERE = "headway/here/1"


class FakeStore:
    """Two queues, of which one is waited on here. `fails`: how many of the next lists and drops do; `told`: what a list
    that fails has found all the same."""

    def __init__(self) -> None:
        self.fails = {"list": 0, "waited on": 0, "other": 0}
        self.told: list[str] = []
        self.dropped: list[str] = []

    async def processes(self, *, budget_s: float) -> frozenset[str]:
        del budget_s
        return frozenset({HERE})

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames:
        del budget_s
        if self.fails["list"]:
            self.fails["list"] -= 1
            return OwnNames(self.told, StoreUnavailable("away"))
        return OwnNames(["waited on", "other", "gone"], None)

    async def drop_absent(self, queue: str, *, spared: frozenset[str], budget_s: float) -> None:
        del spared, budget_s
        if queue == "gone":
            raise QueueNotFound("there is no such queue")
        self._fail(queue)
        self.dropped.append(queue)

    def _fail(self, what: str) -> None:
        if self.fails[what]:
            self.fails[what] -= 1
            raise StoreUnavailable("away")


@pytest.mark.parametrize("what", ["list", "waited on", "other"])
async def test_what_failed_is_tidied_again_until_it_is_done(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(absence, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(absence, "GONE_AFTER_S", 0.02)
    store = FakeStore()
    store.fails[what] = 3
    looking = Absence(cast(Store, store), tasks.spawn, process=HERE, waited_on=lambda: ["waited on"])
    tasks.spawn(looking.run(), "looking")
    await eventually(lambda: set(store.dropped) == {"waited on", "other"})
    looking.stop()
    await tasks.drain(5)
    assert sorted(store.dropped) == ["other", "waited on"]  # each once; of one that is no more nothing is asked again


async def test_what_a_list_has_found_is_tidied_though_the_rest_of_it_is_missing(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence, "GONE_AFTER_S", 0.0)
    store = FakeStore()
    store.fails["list"] = 10_000
    store.told = ["other"]
    looking = Absence(cast(Store, store), tasks.spawn, process=HERE, waited_on=lambda: ["waited on"])
    tasks.spawn(looking.run(), "looking")
    await eventually(lambda: store.dropped == ["waited on", "other"])
    looking.stop()
    async with asyncio.timeout(5):
        await tasks.drain(60)


async def test_of_very_many_queues_a_few_are_tidied_at_a_time_and_each_once(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence, "GONE_AFTER_S", 0.0)
    queues = [f"q{number}" for number in range(500)]
    store, under_way, most, running = FakeStore(), 0, 0, 0
    before = len(asyncio.all_tasks())

    async def drop(queue: str, *, spared: frozenset[str], budget_s: float) -> None:
        nonlocal under_way, most, running
        del spared, budget_s
        running = max(running, len(asyncio.all_tasks()) - before)
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        store.dropped.append(queue)

    monkeypatch.setattr(store, "drop_absent", drop)
    looking = Absence(cast(Store, store), tasks.spawn, process=HERE, waited_on=lambda: queues)
    tasks.spawn(looking.run(), "looking")
    await eventually(lambda: len(store.dropped) >= len(queues) + 3, within=60)
    looking.stop()
    await tasks.drain(60)
    assert sorted(store.dropped) == sorted([*queues, "gone", "other", "waited on"])
    assert most == 16
    assert running <= 16 + 2  # who looks, and who tidies


async def test_a_stop_ends_it_while_the_store_is_away(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "GONE_AFTER_S", 0.0)
    store = FakeStore()
    store.fails = {"list": 10_000, "waited on": 10_000, "other": 0}
    looking = Absence(cast(Store, store), tasks.spawn, process=HERE, waited_on=lambda: ["waited on"])
    tasks.spawn(looking.run(), "looking")
    await eventually(lambda: store.fails["list"] < 10_000)
    looking.stop()
    async with asyncio.timeout(5):
        await tasks.drain(60)


async def test_of_a_queue_that_a_newer_version_keeps_nothing_is_asked_again(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence, "GONE_AFTER_S", 0.0)
    store, asked = FakeStore(), list[str]()

    async def refuse(queue: str, *, spared: frozenset[str], budget_s: float) -> None:
        del spared, budget_s
        asked.append(queue)
        raise NewerLayout("newer")

    monkeypatch.setattr(store, "drop_absent", refuse)
    looking = Absence(cast(Store, store), tasks.spawn, process=HERE, waited_on=lambda: ["waited on"])
    looks = asyncio.create_task(looking.run())
    await eventually(lambda: len(asked) >= 3)
    await tasks.drain(60)  # who tidies has ended, though it was not told to stop
    assert sorted(asked) == ["gone", "other", "waited on"]
    looking.stop()
    await looks
