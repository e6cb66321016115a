"""What calls that go to the store together see of each other: nothing but that it is quick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from headwayd.domain.errors import QueueClosed, StoreUnavailable
from headwayd.engine.coalescing import Coalescer
from headwayd.engine.tasks import Tasks

LONG_S = 30.0


class Steps:
    """A store that answers every ask with itself and the number of its step, when it may."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self.budgets_s: list[float] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.when_answering: Callable[[], object] = lambda: None
        self.unclaimed: list[tuple[str, int, str]] = []

    async def run(self, key: str, asks: list[int], budget_s: float) -> Sequence[str]:
        self.seen.append((key, asks))
        self.budgets_s.append(budget_s)
        number = len(self.seen)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.when_answering()
        return [f"{ask} in {number}" for ask in asks]

    def note_unclaimed(self, key: str, ask: int, answer: str) -> None:
        self.unclaimed.append((key, ask, answer))


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def coalescer(steps: Steps, tasks: Tasks) -> Coalescer[str, int, str]:
    return Coalescer(steps.run, tasks.spawn, name="test", most_items=4, unclaimed=steps.note_unclaimed)


def ask(
    coalescer: Coalescer[str, int, str], number: int, *, key: str = "a", items: int = 1, budget_s: float = LONG_S
) -> asyncio.Task[str]:
    return asyncio.create_task(coalescer.ask(key, number, items=items, budget_s=budget_s))


async def begun(steps: Steps, count: int) -> None:
    async with asyncio.timeout(LONG_S):
        while len(steps.seen) < count:  # noqa: ASYNC110 - the fake has no signal for it
            await asyncio.sleep(0.001)


async def test_one_alone_goes_alone_and_those_who_come_meanwhile_go_together(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    first = ask(coalescer, 1)
    await begun(steps, 1)
    others = [ask(coalescer, number) for number in (2, 3)]
    other_queue = ask(coalescer, 4, key="b")
    await begun(steps, 2)
    steps.may_answer.set()
    assert [await one for one in (first, *others, other_queue)] == ["1 in 1", "2 in 3", "3 in 3", "4 in 2"]
    assert steps.seen == [("a", [1]), ("b", [4]), ("a", [2, 3])]


async def test_a_step_has_so_many_items_at_most_unless_one_asks_for_more(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, 0)]
    await begun(steps, 1)
    asked += [ask(coalescer, number, items=items) for number, items in ((1, 3), (2, 1), (3, 1), (4, 9), (5, 1))]
    await asyncio.sleep(0)
    steps.may_answer.set()
    await asyncio.gather(*asked)
    assert [asks for _, asks in steps.seen] == [[0], [1, 2], [3], [4], [5]]


async def test_a_full_step_goes_behind_the_one_on_its_way_and_no_third(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, number) for number in range(15)]
    await begun(steps, 2)
    await asyncio.sleep(0.01)
    assert [asks for _, asks in steps.seen] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    steps.may_answer.set()
    answers = await asyncio.gather(*asked)
    assert answers == [f"{number} in {1 + number // 4}" for number in range(15)]


async def test_less_than_a_step_waits_for_the_one_on_its_way(steps: Steps, coalescer: Coalescer[str, int, str]) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, number) for number in range(5)]
    await begun(steps, 1)
    asked += [ask(coalescer, number) for number in (5, 6)]
    await asyncio.sleep(0.01)
    assert [asks for _, asks in steps.seen] == [[0, 1, 2, 3]]
    steps.may_answer.set()
    assert (await asyncio.gather(*asked))[4:] == ["4 in 2", "5 in 2", "6 in 2"]


@pytest.mark.parametrize("error", [QueueClosed("closed"), ValueError("a defect")])
async def test_what_goes_wrong_is_told_to_all_who_were_in_it_and_the_next_go_on(
    steps: Steps, coalescer: Coalescer[str, int, str], error: Exception
) -> None:
    steps.error = error
    asked = [ask(coalescer, number) for number in (1, 2)]
    assert await asyncio.gather(*asked, return_exceptions=True) == [error, error]
    steps.error = None
    assert await ask(coalescer, 3) == "3 in 2"


async def test_who_goes_before_its_step_has_begun_has_asked_for_nothing(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    first = ask(coalescer, 1)
    await begun(steps, 1)
    gone, stays = ask(coalescer, 2), ask(coalescer, 3)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    steps.may_answer.set()
    assert [await first, await stays] == ["1 in 1", "3 in 2"]
    assert steps.seen[1] == ("a", [3])
    assert not steps.unclaimed


async def test_what_outlives_its_caller_is_done_though_it_has_gone(steps: Steps, tasks: Tasks) -> None:
    coalescer = Coalescer(steps.run, tasks.spawn, name="test", most_items=4, outlives=True)
    steps.may_answer.clear()
    first = ask(coalescer, 1)
    await begun(steps, 1)
    gone = ask(coalescer, 2)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    steps.may_answer.set()
    await first
    await begun(steps, 2)
    assert steps.seen[1] == ("a", [2])


async def test_an_answer_to_one_who_has_gone_is_handed_over(steps: Steps, coalescer: Coalescer[str, int, str]) -> None:
    steps.may_answer.clear()
    gone, stays = ask(coalescer, 1), ask(coalescer, 2)
    await begun(steps, 1)
    gone.cancel()
    steps.may_answer.set()
    assert await stays == "2 in 1"
    assert steps.unclaimed == [("a", 1, "1 in 1")]


async def test_an_answer_that_comes_just_when_its_caller_goes_is_handed_over(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    goes, stays = ask(coalescer, 1), ask(coalescer, 2)
    await begun(steps, 1)
    steps.when_answering = lambda: asyncio.get_running_loop().call_soon(goes.cancel)  # before it hears of its answer
    steps.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await goes
    assert await stays == "2 in 1"
    assert steps.unclaimed == [("a", 1, "1 in 1")]


async def test_an_error_for_one_who_has_gone_is_handed_over(steps: Steps, tasks: Tasks) -> None:
    failed: list[tuple[str, int, str]] = []
    coalescer: Coalescer[str, int, str] = Coalescer(
        steps.run,
        tasks.spawn,
        name="test",
        most_items=4,
        failed=lambda key, ask, error: failed.append((key, ask, str(error))),
    )
    steps.may_answer.clear()
    gone, stays = ask(coalescer, 1), ask(coalescer, 2)
    await begun(steps, 1)
    gone.cancel()
    steps.error = OSError("no wire")
    steps.may_answer.set()
    with pytest.raises(OSError, match="no wire"):
        await stays
    assert failed == [("a", 1, "no wire")]


async def test_a_step_has_the_time_of_the_one_in_it_who_has_least(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, number, budget_s=budget_s) for number, budget_s in ((1, 20), (2, 17), (3, 30), (4, 3))]
    await begun(steps, 2)
    assert steps.seen == [("a", [1, 2, 3]), ("a", [4])]
    assert 16 < steps.budgets_s[0] <= 17
    assert 2 < steps.budgets_s[1] <= 3
    steps.may_answer.set()
    await asyncio.gather(*asked)


async def test_whose_time_is_up_while_it_waits_has_asked_for_nothing(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    steps.may_answer.clear()
    first = ask(coalescer, 1, budget_s=0.06)
    await begun(steps, 1)
    late = ask(coalescer, 2, budget_s=0.05)
    with pytest.raises(StoreUnavailable):
        await late
    steps.may_answer.set()
    assert await first == "1 in 1"  # it is the step that would have told it otherwise
    assert steps.seen == [("a", [1])]


async def test_the_end_of_its_tasks_ends_those_who_wait(
    steps: Steps, coalescer: Coalescer[str, int, str], tasks: Tasks
) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, 1)]
    await begun(steps, 1)
    asked.append(ask(coalescer, 2))
    await asyncio.sleep(0)
    await tasks.close()
    await asyncio.wait(asked, timeout=LONG_S)
    assert [one.cancelled() for one in asked] == [True, True]


@pytest.mark.parametrize("turns", [1, 2, 3, 10])
async def test_the_end_of_its_tasks_ends_those_in_a_step_behind_another_however_far_that_is(
    steps: Steps, coalescer: Coalescer[str, int, str], tasks: Tasks, turns: int
) -> None:
    steps.may_answer.clear()
    asked = [ask(coalescer, number) for number in range(15)]
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    await tasks.close()
    await asyncio.wait(asked, timeout=LONG_S)
    assert all(one.cancelled() for one in asked)


async def test_switched_off_each_goes_alone_at_once_and_who_has_gone_is_still_handed_over(
    steps: Steps, tasks: Tasks
) -> None:
    coalescer = Coalescer(
        steps.run, tasks.spawn, name="test", most_items=4, unclaimed=steps.note_unclaimed, is_off=True
    )
    steps.may_answer.clear()
    stays, goes = ask(coalescer, 1), ask(coalescer, 2)
    await begun(steps, 2)
    assert steps.seen == [("a", [1]), ("a", [2])]
    goes.cancel()
    await asyncio.wait({goes})
    steps.may_answer.set()
    assert (await stays).startswith("1 in ")
    async with asyncio.timeout(LONG_S):
        while not steps.unclaimed:  # noqa: ASYNC110 - the fake has no signal for it
            await asyncio.sleep(0.001)
    assert [number for _, number, _ in steps.unclaimed] == [2]


async def test_one_timer_ends_the_waits_of_all_each_in_its_time(
    steps: Steps, coalescer: Coalescer[str, int, str]
) -> None:
    """Whoever comes later may have less time, and whoever has more goes on."""
    steps.may_answer.clear()
    first = ask(coalescer, 1, budget_s=0.9)
    await begun(steps, 1)
    waits = [ask(coalescer, number, budget_s=budget_s) for number, budget_s in ((2, 0.6), (3, 0.55), (4, 0.9))]
    for soon in waits[1::-1]:
        with pytest.raises(StoreUnavailable):
            await soon
    assert not waits[2].done()
    steps.may_answer.set()
    assert [await first, await waits[2]] == ["1 in 1", "4 in 2"]
