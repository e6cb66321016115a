"""Calls that wait for a role, and look again and again, answer in time though the store falls silent."""

from __future__ import annotations

import asyncio

import pytest

from harness.clocks import run
from headwayd.domain.errors import RoleInUse, ShuttingDown, StoreUnavailable
from headwayd.engine.ports import RoleStep
from headwayd.engine.roles import until_done, until_free

WAIT_MS, LOOK_MS, BUDGET_S = 900, 90, 0.9  # of a call whose deadline is in a second


@pytest.mark.parametrize("silent_from_s", [0.0, 0.5, 0.88, 0.9])
def test_all_steps_share_the_time_of_the_call(silent_from_s: float) -> None:
    async def step(_generation: str, budget_s: float) -> RoleStep:
        if asyncio.get_running_loop().time() < silent_from_s:
            return RoleStep(False, "producer", "somebody")
        await asyncio.sleep(budget_s)
        raise StoreUnavailable("silent")

    async def ends_at() -> float:
        with pytest.raises(StoreUnavailable):
            await until_done(step, WAIT_MS, look_ms=LOOK_MS, budget_s=BUDGET_S, is_draining=lambda: False)
        return asyncio.get_running_loop().time()

    assert run(ends_at) <= (WAIT_MS + LOOK_MS) / 1000 + 0.001


def test_a_step_may_take_no_longer_because_the_wait_is_long() -> None:
    budgets: list[float] = []

    async def step(_generation: str, budget_s: float) -> RoleStep:
        budgets.append(budget_s)
        return RoleStep(False, "producer", "somebody")

    async def answer() -> bool:
        step_done = await until_done(step, 30_000, look_ms=2_000, budget_s=2.0, is_draining=lambda: False)
        return step_done.is_done

    assert not run(answer)
    assert set(budgets[:-1]) == {2.0}
    assert budgets[-1] == pytest.approx(2.0)


def test_going_down_ends_the_wait_between_two_steps() -> None:
    begun: list[float] = []

    def now() -> float:
        return asyncio.get_running_loop().time()

    async def step(_generation: str, _budget_s: float) -> RoleStep:
        begun.append(now())
        return RoleStep(False, "producer", "somebody")

    async def ends_at() -> float:
        with pytest.raises(ShuttingDown):
            await until_done(step, 30_000, look_ms=2_000, budget_s=2.0, is_draining=lambda: now() > 5)
        return now()

    assert 5 < run(ends_at) < 5.2
    assert len(begun) > 10


def test_a_step_that_tells_of_held_roles_by_an_error_is_done_again_more_and_more_rarely() -> None:
    begun: list[tuple[float, float]] = []

    def now() -> float:
        return asyncio.get_running_loop().time()

    async def step(budget_s: float) -> str:
        begun.append((now(), budget_s))
        if now() < 0.9:
            raise RoleInUse.of("q", role="producer", holder="somebody")
        return "done"

    async def answer(wait_s: float, *, is_draining: bool = False) -> str:
        return await until_free(step, wait_s, budget_s=2.0, is_draining=lambda: is_draining)

    assert run(lambda: answer(1.0)) == "done"
    assert len(begun) < 20
    assert all(at + budget_s == pytest.approx(2.0) for at, budget_s in begun)
    with pytest.raises(RoleInUse) as refused:
        run(lambda: answer(0.5))
    assert refused.value.metadata["holder"] == "somebody"
    assert begun[-1][0] == pytest.approx(0.5)
    with pytest.raises(ShuttingDown):
        run(lambda: answer(1.0, is_draining=True))
    assert begun[-1][0] == 0
