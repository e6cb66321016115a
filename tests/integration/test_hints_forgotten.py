"""What was armed on a queue is forgotten with the queue, however much of it never changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness import eventually
from headwayd.domain.model import Policy
from headwayd.store.redis_store import RedisStore
from integration.desk import BUDGET_S, Desk

Arm = Callable[[RedisStore, str], Awaitable[object]]
ARM: dict[str, Arm] = {
    "wait": lambda store, queue: store.arm(queue, until_drained=False),
    "drain": lambda store, queue: store.arm(queue, until_drained=True),
    "watch": lambda store, queue: store.arm_watch(queue),
    "stand": lambda store, queue: store.arm_standing(queue),
    "blocked": lambda store, queue: store.arm_blocked(queue),
}
CHECK: dict[str, Arm] = {"check": lambda store, queue: store.find_quiet([queue])}


def each(arms: dict[str, Arm]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("arm", arms.values(), ids=arms.keys())


class Ears:
    """What is heard, and what is still waited for."""

    def __init__(self, desk: Desk) -> None:
        self._hints: Any = desk.store._hints
        self.heard: list[str] = []
        self._hints.on_hint = lambda queue, _is_call: self.heard.append(queue or "all")
        self._hints.standing.listener = self._hints.blocked.listener = self.heard.append

    def kept(self) -> list[Any]:
        """Everything."""
        tables = [table for interest in self._hints._interests for table in vars(interest).values()]
        return [entry for table in tables if isinstance(table, dict) for entry in table]


@pytest.fixture
async def ears(desk: Desk) -> Ears:
    made = Ears(desk)
    await desk.store.start()
    await desk.create()
    made.heard.clear()
    return made


@each(ARM | CHECK)
async def test_of_a_queue_that_was_deleted_while_it_was_empty_nothing_is_kept(desk: Desk, ears: Ears, arm: Arm) -> None:
    names = [f"{desk.name}-{number}" for number in range(20)]
    for name in names:
        await desk.store.create(name, Policy(), budget_s=BUDGET_S)
        await arm(desk.store, name)
    assert ears.kept()
    for name in names:
        await desk.store.delete(name, budget_s=BUDGET_S)
    await eventually(lambda: set(ears.heard) >= set(names))
    assert not ears.kept()


@each(ARM)
async def test_of_a_queue_that_is_not_there_nothing_is_kept_and_who_asked_looks_again(
    desk: Desk, ears: Ears, arm: Arm
) -> None:
    name = f"{desk.name}-never"
    await arm(desk.store, name)
    assert not ears.kept()
    await eventually(lambda: name in ears.heard)


async def test_who_arms_again_after_a_change_hears_the_next_one(desk: Desk, ears: Ears) -> None:
    """Of another key, too."""
    await desk.store.arm(desk.name, until_drained=True)
    await desk.put(b"x")
    await eventually(lambda: desk.name in ears.heard)
    for change in (lambda: desk.store.close_queue(desk.name, budget_s=BUDGET_S), desk.take_one):
        ears.heard.clear()
        await desk.store.arm(desk.name, until_drained=True)
        await change()
        await eventually(lambda: desk.name in ears.heard)
