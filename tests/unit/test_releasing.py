"""What many have left behind goes back together: in few steps, one large one at a time, the last of the queue first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from headwayd.domain.errors import QueueNotFound, StoreUnavailable
from headwayd.domain.model import Settlement
from headwayd.engine.ports import Store
from headwayd.engine.releasing import MOST_AT_ONCE, Releases
from headwayd.engine.tasks import Tasks


@dataclass
class Shelf:
    """A store that takes leases back; a lease is named by its ticket. `fails` are raised first, one by one."""

    steps: list[tuple[str, list[int], bool]] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

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
        del budget_s, owner, claim
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.may_go_on.wait()
            await asyncio.sleep(0)
            if self.fails:
                raise self.fails.pop(0)
            self.steps.append((queue, [int(lease) for lease in leases], owned))
        finally:
            self.running -= 1
        return []

    def ticket_of(self, lease: str) -> int:
        return int(lease)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def releases(shelf: Shelf, tasks: Tasks) -> Releases:
    return Releases(cast(Store, shelf), tasks.spawn)


def tickets(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


async def test_a_single_one_goes_at_once(releases: Releases, shelf: Shelf) -> None:
    shelf.may_go_on.set()
    async with asyncio.timeout(5):
        await releases.release("jobs", ["7"], owned=True)
    assert shelf.steps == [("jobs", [7], True)]


async def test_nothing_takes_no_step(releases: Releases, shelf: Shelf) -> None:
    async with asyncio.timeout(5):
        await releases.release("jobs", [], owned=True)
    assert not shelf.steps


async def test_of_all_that_wait_the_last_go_first_and_in_order_within_a_step(releases: Releases, shelf: Shelf) -> None:
    them = [releases.release("jobs", tickets(first, 150), owned=False) for first in (301, 1, 151)]
    async with asyncio.timeout(5):
        everybody = asyncio.gather(*them)
        await asyncio.sleep(0.01)
        shelf.may_go_on.set()
        await everybody
    given_back = [numbers for _, numbers, _ in shelf.steps]
    assert all(numbers == sorted(numbers) for numbers in given_back)
    assert all(len(numbers) <= MOST_AT_ONCE for numbers in given_back)
    assert [min(numbers) for numbers in given_back] == sorted((min(numbers) for numbers in given_back), reverse=True)
    assert sorted(number for numbers in given_back for number in numbers) == list(range(1, 451))
    assert len(given_back) == 3


async def test_one_large_step_is_on_its_way_at_a_time_and_queues_take_turns(releases: Releases, shelf: Shelf) -> None:
    shelf.may_go_on.set()
    async with asyncio.timeout(5):
        await asyncio.gather(
            releases.release("many", tickets(1, 5 * MOST_AT_ONCE), owned=False),
            releases.release("more", tickets(1, MOST_AT_ONCE), owned=False),
            releases.release("more", tickets(1, MOST_AT_ONCE), owned=True),  # another kind of step
        )
    assert shelf.most_running == 1
    assert [queue for queue, _, _ in shelf.steps][:3] == ["many", "more", "more"]
    assert len(shelf.steps) == 7


async def test_small_steps_of_many_queues_go_together_and_a_large_one_gets_its_turn(
    releases: Releases, shelf: Shelf
) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as asking:
        for number in range(15):
            asking.create_task(releases.release(f"few {number}", ["1"], owned=False))
        asking.create_task(releases.release("many", tickets(1, MOST_AT_ONCE), owned=False))
        for number in range(15, 200):
            asking.create_task(releases.release(f"few {number}", ["1"], owned=False))
        await asyncio.sleep(0.01)
        assert shelf.running == 15  # those behind the large one wait, as it does
        shelf.may_go_on.set()
    assert [queue for queue, _, _ in shelf.steps].index("many") == 15
    assert 15 <= shelf.most_running <= 20
    assert len(shelf.steps) == 201


async def test_who_is_cancelled_while_it_waits_for_room_takes_none(shelf: Shelf) -> None:
    started = list[asyncio.Task[None]]()

    async def serve(work: Awaitable[None]) -> None:
        await work

    releases = Releases(cast(Store, shelf), lambda work, _name: started.append(asyncio.create_task(serve(work))))
    async with asyncio.timeout(5):
        them = [
            asyncio.create_task(releases.release(queue, tickets(1, MOST_AT_ONCE), owned=False))
            for queue in ("a", "b", "c")
        ]
        await asyncio.sleep(0.01)
        started[1].cancel()
        await asyncio.sleep(0.01)
        assert shelf.running == 1
        shelf.may_go_on.set()
        told = await asyncio.gather(*them, return_exceptions=True)
    assert [type(each) for each in told] == [type(None), asyncio.CancelledError, type(None)]
    assert [queue for queue, _, _ in shelf.steps] == ["a", "c"]
    assert shelf.most_running == 1


async def test_each_hears_when_its_own_are_back(releases: Releases, shelf: Shelf) -> None:
    shelf.may_go_on.set()
    told: list[str] = []

    async def give_back(name: str, first: int) -> None:
        await releases.release("jobs", tickets(first, MOST_AT_ONCE), owned=False)
        told.append(f"{name} after {len(shelf.steps)}")

    async with asyncio.timeout(5):
        await asyncio.gather(give_back("low", 1), give_back("high", 1_001))
    assert told == ["high after 1", "low after 2"]


async def test_what_the_store_did_not_do_is_tried_again(releases: Releases, shelf: Shelf) -> None:
    shelf.may_go_on.set()
    shelf.fails.append(StoreUnavailable("away"))
    async with asyncio.timeout(5):
        await releases.release("jobs", ["7", "8"], owned=False)
    assert shelf.steps == [("jobs", [7, 8], False)]


async def test_those_of_a_queue_that_is_no_more_are_done_with(releases: Releases, shelf: Shelf) -> None:
    shelf.may_go_on.set()
    shelf.fails.append(QueueNotFound("no such queue"))
    async with asyncio.timeout(5):
        await releases.release("gone", ["7"], owned=False)
        await releases.release("there", ["8"], owned=False)
    assert shelf.steps == [("there", [8], False)]


async def test_a_defect_in_one_step_is_told_to_those_in_it_and_stops_nobody_else(
    releases: Releases, shelf: Shelf
) -> None:
    shelf.may_go_on.set()
    shelf.fails.append(RuntimeError("a defect"))
    high, low = tickets(1_001, MOST_AT_ONCE), tickets(1, MOST_AT_ONCE)
    async with asyncio.timeout(5):
        told = await asyncio.gather(
            *(releases.release("jobs", leases, owned=False) for leases in (high, low)), return_exceptions=True
        )
    assert isinstance(told[0], RuntimeError)
    assert told[1] is None
    assert shelf.steps == [("jobs", [int(lease) for lease in low], False)]


async def test_who_is_cancelled_has_asked_for_it_all_the_same(releases: Releases, shelf: Shelf, tasks: Tasks) -> None:
    asking = asyncio.create_task(releases.release("jobs", ["7"], owned=False))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    shelf.may_go_on.set()
    await tasks.drain(5)
    assert shelf.steps == [("jobs", [7], False)]


async def test_nobody_waits_for_ever_when_the_service_ends(releases: Releases, tasks: Tasks) -> None:
    asking = asyncio.create_task(releases.release("jobs", ["7"], owned=False))
    await asyncio.sleep(0.01)
    await tasks.close()
    done, _ = await asyncio.wait({asking}, timeout=5)
    assert done == {asking}
    assert asking.cancelled()
