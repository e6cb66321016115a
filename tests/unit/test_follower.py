"""A follower of a line hears of every change, also of one that came while it asked to be told of the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

from harness import eventually
from headwayd.engine.standing.follower import Follower
from headwayd.engine.tasks import Tasks


class FakeStore:
    """Something is heard while it is first asked to tell of a change: that ends the interest in all others."""

    def __init__(self) -> None:
        self.armed = 0
        self.looked = 0
        self.on_arm: Any = None

    async def arm_standing(self, _queue: str) -> None:
        self.armed += 1
        if self.armed == 1:
            self.on_arm()

    async def footings(self, _queue: str, waiters: Sequence[Any], **_: Any) -> Any:
        self.looked += 1
        return Mock(footings=[Mock(owned=True) for _ in waiters], numbers=Mock(generation=""))


async def test_what_is_heard_while_it_is_armed_makes_it_arm_and_look_again(tasks: Tasks) -> None:
    store = FakeStore()
    follower = Follower("q", Mock(store=store), Mock(), tasks.spawn, check_s=lambda: float("inf"), on_end=lambda: None)
    store.on_arm = follower.kick
    stance = Mock(is_quiet=True)
    follower.join(stance)
    follower.hold(stance)
    await eventually(lambda: store.armed == 2)
    await eventually(lambda: store.looked == 2)
    follower.leave(stance)
    await tasks.drain(5)
    assert (store.armed, store.looked) == (2, 2)  # nothing more was heard
