"""The sweeper visits a queue again as long as there is more, whatever it is told while a visit is under way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from harness import eventually
from headwayd.domain.errors import NewerLayout, StoreUnavailable
from headwayd.engine.ports import OwnNames, Store
from headwayd.engine.sweeper import Sweeper
from headwayd.engine.tasks import Tasks

QUEUE = "q"


class Overdue:
    """A store with one queue that needs so many visits. Each tells, as the real one does, that the next is due already,
    before it answers."""

    def __init__(self, visits: int) -> None:
        self.left = visits
        self.fails = 0
        self.tell: Callable[[str, float], None] = lambda _queue, _delay_s: None
        self.is_done = asyncio.Event()

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames:
        del budget_s
        return OwnNames((), None)

    async def sweep(self, queue: str, *, budget_s: float) -> bool:
        del budget_s
        self.left -= 1
        self.tell(queue, 0.0)
        for _ in range(5):  # the sweeper has its turn while the visit is under way
            await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("away")
        if self.left <= 0:
            self.is_done.set()
        return self.left > 0


def sweeping(store: Overdue, spawn: Callable[[Awaitable[None], str], None]) -> Sweeper:
    sweeper = Sweeper(cast(Store, store), spawn)
    store.tell = sweeper.note
    spawn(sweeper.run(), "sweeper")
    return sweeper


class Calm(Overdue):
    """Each visit tells that the next is due in days, of a queue that is still there; `names` is what a list finds."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(1)
        self.names = names

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames:
        del budget_s
        return OwnNames(self.names, None)

    async def sweep(self, queue: str, *, budget_s: float) -> bool:
        del budget_s
        if queue in self.names:
            self.tell(queue, 7 * 86_400.0)
        self.is_done.set()
        return False

    async def visited(self) -> None:
        """Once more."""
        await asyncio.wait_for(self.is_done.wait(), 5)
        self.is_done.clear()


async def test_a_queue_with_more_that_is_due_is_visited_until_there_is_no_more(tasks: Tasks) -> None:
    store = Overdue(20)
    sweeping(store, tasks.spawn).note(QUEUE, 0.0)
    await asyncio.wait_for(store.is_done.wait(), 5)


async def test_a_visit_that_failed_is_made_again(tasks: Tasks) -> None:
    store = Overdue(3)
    store.fails = 2
    sweeping(store, tasks.spawn).note(QUEUE, 0.0)
    await asyncio.wait_for(store.is_done.wait(), 5)


async def test_what_is_told_during_the_last_visit_is_not_forgotten(tasks: Tasks) -> None:
    store = Overdue(1)
    sweeping(store, tasks.spawn).note(QUEUE, 0.0)
    await asyncio.wait_for(store.is_done.wait(), 5)
    store.is_done.clear()
    await asyncio.wait_for(store.is_done.wait(), 5)


async def test_a_queue_that_a_newer_version_keeps_is_not_visited_again(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwayd.engine.sweeper._RETRY_S", 0.0)
    visits = 0

    async def refuse(_queue: str, *, budget_s: float) -> bool:
        nonlocal visits
        del budget_s
        visits += 1
        raise NewerLayout("newer")

    store = Overdue(1)
    monkeypatch.setattr(store, "sweep", refuse)
    sweeping(store, tasks.spawn).note(QUEUE, 0.0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert visits == 1


async def test_queues_that_are_due_together_are_visited_a_few_at_a_time_and_each_once(tasks: Tasks) -> None:
    store, visited, under_way, most = Overdue(1), list[str](), 0, 0
    running = 0  # tasks of visits, also those that have not begun

    async def sweep(queue: str, *, budget_s: float) -> bool:
        nonlocal under_way, most
        del budget_s
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        visited.append(queue)
        return False

    def spawn(work: Awaitable[None], name: str) -> None:
        nonlocal running
        running = max(running, sum(task.get_name().startswith("sweep:") for task in asyncio.all_tasks()))
        tasks.spawn(work, name)

    store.sweep = sweep  # type: ignore[method-assign]
    sweeper = sweeping(store, spawn)
    queues = [f"q{number}" for number in range(200)]
    for queue in queues:
        sweeper.note(queue, 0.0)
    await eventually(lambda: len(visited) >= len(queues))
    assert visited == queues
    assert most == 16
    assert running <= 16


async def test_visits_go_on_while_the_queues_are_listed(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = asyncio.Event()

    async def never(*, budget_s: float) -> OwnNames:
        del budget_s
        listing.set()
        await asyncio.Event().wait()
        return OwnNames((), None)

    store = Overdue(3)
    monkeypatch.setattr(store, "names_with_own_keys", never)
    sweeper = sweeping(store, tasks.spawn)
    await asyncio.wait_for(listing.wait(), 5)
    sweeper.note(QUEUE, 0.0)
    await asyncio.wait_for(store.is_done.wait(), 5)
    sweeper.stop()
    await asyncio.wait_for(tasks.drain(60), 5)


async def test_what_a_list_has_found_is_visited_though_the_rest_of_it_is_missing(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def some(*, budget_s: float) -> OwnNames:
        del budget_s
        return OwnNames([QUEUE], StoreUnavailable("away"))

    store = Overdue(1)
    monkeypatch.setattr(store, "names_with_own_keys", some)
    sweeping(store, tasks.spawn)
    await asyncio.wait_for(store.is_done.wait(), 5)


async def test_of_what_a_list_has_found_no_turn_of_the_loop_notes_more_than_some(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number}" for number in range(2_100)]
    store, noted_in, turn = Calm(names), list[int](), 0
    sweeper, loop = Sweeper(cast(Store, store), tasks.spawn), asyncio.get_running_loop()

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if len(noted_in) < len(names):
            loop.call_soon(count_turns)

    monkeypatch.setattr(sweeper, "note", lambda _queue, _delay_s: noted_in.append(turn))
    count_turns()
    tasks.spawn(sweeper.run(), "sweeper")
    await eventually(lambda: len(noted_in) == len(names))
    assert max(noted_in.count(one) for one in set(noted_in)) <= 500


async def test_a_list_that_fails_is_made_again_ever_more_seldom(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwayd.engine.sweeper._RETRY_S", 0.01)
    loop, at, made = asyncio.get_running_loop(), list[float](), asyncio.Event()

    async def fail(*, budget_s: float) -> OwnNames:
        del budget_s
        at.append(loop.time())
        if len(at) < 6:
            return OwnNames((), StoreUnavailable("too many keys"))
        made.set()
        return OwnNames([QUEUE], None)

    store = Overdue(1)
    monkeypatch.setattr(store, "names_with_own_keys", fail)
    sweeping(store, tasks.spawn)
    await asyncio.wait_for(store.is_done.wait(), 5)
    assert made.is_set()
    assert at[5] - at[4] >= 0.15  # 0.01 at first, and doubled four times


async def test_however_often_a_queue_is_visited_it_is_kept_once_and_some(tasks: Tasks) -> None:
    queue = 2 * QUEUE  # a text of its own, so that who refers to it can be counted
    store = Calm([queue])
    sweeper = sweeping(store, tasks.spawn)
    for _ in range(500):
        await store.visited()
        sweeper.list_anew()
    assert sys.getrefcount(queue) < 200


async def test_a_queue_that_is_no_more_is_forgotten_with_the_next_list(tasks: Tasks) -> None:
    queue = 2 * QUEUE
    is_free = sys.getrefcount(queue)
    store = Calm([queue])
    sweeper = sweeping(store, tasks.spawn)
    await store.visited()
    store.names.clear()
    sweeper.list_anew()
    await store.visited()
    sweeper.note("another", 0.0)  # it has the last one at hand
    await store.visited()
    await eventually(lambda: sys.getrefcount(queue) <= is_free)
