"""A follower of a line hears of every change, also of one that came while it asked to be told of the next; and whoever
stands there is told what is worth telling, as soon as it is, at the cost of few looks."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest.mock import Mock

import pytest

from harness import eventually
from harness.clocks import run
from headwayd.domain.errors import QueueDeleted, QueueNotFound
from headwayd.domain.hints import PollHints
from headwayd.domain.places import NEAR, LineNumbers
from headwayd.domain.standing import Footing, Footings, Waiter
from headwayd.engine.consumers import Consumer
from headwayd.engine.standing.follower import LOOK_EVERY_S, Follower
from headwayd.engine.standing.stance import Stance
from headwayd.engine.tasks import Tasks

POLL_MIN_S, POLL_MAX_S = 20.0, 40.0
HINTS = PollHints(poll_min_ms=int(POLL_MIN_S * 1_000), poll_max_ms=int(POLL_MAX_S * 1_000))
SOON_S = 2 * LOOK_EVERY_S


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
        return Mock(footings=[Mock(owned=True) for _ in waiters], near_number=None, numbers=Mock(generation=""))


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


def number_of(name: str) -> int:
    """In line."""
    return int(name.removeprefix("p#"))


class Scene:
    """A line of consumers, those of them who are followed, and the store that is asked: for how many, each time."""

    def __init__(self, length: int) -> None:
        self.line = [f"p#{number}" for number in range(1, length + 1)]
        self.tasks = Tasks()
        self.looks: list[int] = []
        self.restored = 0
        self._is_armed = self.is_gone = False
        consumers = Mock(store=self, restore=self._restore)
        self.follower = Follower(
            "q", consumers, Mock(), self.tasks.spawn, check_s=lambda: float("inf"), on_end=lambda: None
        )
        self.readers: list[asyncio.Task[None]] = []

    # -- the store ----------------------------------------------------------------------------------------------------

    async def arm_standing(self, _queue: str) -> None:
        self._is_armed = True

    async def footings(self, _queue: str, waiters: Sequence[Waiter], **_: Any) -> Footings:
        self.looks.append(len(waiters))
        if self.is_gone:
            raise QueueNotFound("gone")
        found = [Footing(position=self.position(one.name), number=number_of(one.name), owned=0) for one in waiters]
        near = number_of(self.line[NEAR - 1]) if len(self.line) >= NEAR else None
        numbers = cast(LineNumbers, Mock(generation=""))
        return Footings(polls=Mock(), near_number=near, numbers=numbers, footings=found)

    def position(self, name: str) -> int:
        """As of now."""
        return self.line.index(name) + 1 if name in self.line else 0

    def _restore(self, _queue: str) -> None:
        self.restored += 1

    # -- what happens -------------------------------------------------------------------------------------------------

    def change(self, *, leave: int = 0, at: int = 0, join: str = "") -> None:
        """So many leave from there on, and somebody joins at the end; that is heard."""
        del self.line[at : at + leave]
        self.line += [join] * bool(join)
        if self._is_armed:
            self._is_armed = False
            self.follower.kick()

    def stand(self, name: str, *, is_quiet: bool = False) -> list[tuple[float, int]]:
        """Follows one; what it is told, and when."""
        told: list[tuple[float, int]] = []
        waiter = Waiter(name=name, number=number_of(name))
        stance = Stance(cast(Consumer, Mock(waiter=waiter)), is_quiet=is_quiet)
        self.follower.join(stance)
        self.follower.stand(stance)
        self.follower.ask(stance)
        self.readers.append(asyncio.ensure_future(self._read(stance, told)))
        return told

    def come_and_go(self, name: str) -> weakref.ref[Stance]:
        """One that leaves as soon as it has been told its place."""
        stance = Stance(cast(Consumer, Mock(waiter=Waiter(name=name, number=number_of(name)))))
        stance.hints, stance.told_position = HINTS, self.position(name)
        stance.told_at = asyncio.get_running_loop().time()
        self.follower.join(stance)
        self.follower.told(stance)
        self.follower.leave(stance)
        return weakref.ref(stance)

    async def _read(self, stance: Stance, told: list[tuple[float, int]]) -> None:
        """Does what a stream does."""
        now = asyncio.get_running_loop().time
        stance.hints = HINTS
        try:
            while True:
                await stance.news()
                if stance.footing is not None and stance.footing.position and stance.is_due(now()):
                    stance.told_position, stance.told_at = stance.footing.position, now()
                    told.append((stance.told_at, stance.told_position))
                    self.follower.told(stance)
        finally:
            self.follower.leave(stance)

    async def end(self) -> None:
        """All leave."""
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        await self.tasks.drain(1)


def played(length: int, act: Callable[[Scene], Any]) -> None:
    """Plays in a line of so many; hours take no time."""

    async def scene() -> None:
        made = Scene(length)
        await act(made)
        await made.end()

    run(scene)


def positions(told: list[tuple[float, int]]) -> list[int]:
    return [position for _, position in told]


@pytest.mark.parametrize("is_quiet", [True, False])
def test_who_stands_far_back_is_told_on_however_long_nothing_was_worth_it(*, is_quiet: bool) -> None:
    async def act(scene: Scene) -> None:
        told = scene.stand("p#41", is_quiet=is_quiet)
        await asyncio.sleep(10 * POLL_MAX_S)
        assert set(positions(told)) == {41}
        for number in range(5):  # behind it
            scene.change(join=f"p#{42 + number}")
            await asyncio.sleep(0.6 * POLL_MIN_S)
        await asyncio.sleep(POLL_MAX_S)
        assert set(positions(told)) == {41}
        scene.change(leave=1)  # of which by itself nothing is told
        await asyncio.sleep(POLL_MAX_S)
        assert positions(told)[-1] == 40
        scene.change(leave=30)
        await asyncio.sleep(POLL_MAX_S)
        assert positions(told)[-1] == 10

    played(41, act)


def test_who_is_told_of_changes_only_is_told_at_poll_max_if_there_was_one() -> None:
    async def act(scene: Scene) -> None:
        told = scene.stand("p#41", is_quiet=True)
        await asyncio.sleep(POLL_MIN_S / 2)
        scene.change(leave=1)
        await asyncio.sleep(POLL_MAX_S - POLL_MIN_S / 2)
        assert positions(told) == [41]
        await asyncio.sleep(SOON_S)
        assert positions(told) == [41, 40]
        await asyncio.sleep(POLL_MAX_S + 1)
        assert positions(told) == [41, 40]
        scene.change(leave=1)  # longer ago than poll_max was anything told
        await asyncio.sleep(SOON_S)
        assert positions(told) == [41, 40, 39]

    played(41, act)


def test_who_moved_up_by_a_step_before_poll_min_is_told_when_that_is_over() -> None:
    async def act(scene: Scene) -> None:
        told = scene.stand("p#100")
        await asyncio.sleep(POLL_MIN_S / 2)
        scene.change(leave=30)
        await asyncio.sleep(POLL_MIN_S / 2)
        assert positions(told) == [100]
        await asyncio.sleep(POLL_MIN_S / 8 + SOON_S)
        assert positions(told) == [100, 70]

    played(100, act)


@pytest.mark.parametrize("is_quiet", [True, False])
@pytest.mark.parametrize("left", [0, 1, NEAR - 1])
def test_who_comes_among_the_first_is_told_at_once_and_every_step_from_then_on(left: int, *, is_quiet: bool) -> None:
    async def act(scene: Scene) -> None:
        told = scene.stand("p#1000", is_quiet=is_quiet)
        await asyncio.sleep(1)
        scene.change(leave=999 - NEAR)  # it is the one behind them
        await asyncio.sleep(1)
        assert positions(told) == [1000]
        scene.change(leave=NEAR - left)
        await asyncio.sleep(SOON_S)
        assert positions(told) == [1000, left + 1]
        for ahead in reversed(range(left)):
            scene.change(leave=1)
            await asyncio.sleep(SOON_S)
            assert positions(told)[-1] == ahead + 1

    played(1_000, act)


def test_a_change_costs_the_same_however_many_stand_far_back() -> None:
    async def act(scene: Scene) -> None:
        for number in range(NEAR + 11, 1_001):
            scene.stand(f"p#{number}")
        await asyncio.sleep(1)
        scene.looks.clear()
        for step in range(10):
            scene.change(leave=1, at=NEAR)  # those among the first stay
            await asyncio.sleep(0.5)
            assert len(scene.looks) == step + 1
        assert sum(scene.looks) == 0
        scene.change(leave=1)
        await asyncio.sleep(0.5)
        assert sum(scene.looks) == 1  # at the one who has come among them

    played(1_000, act)


def test_of_many_whose_queue_is_no_more_some_learn_it_in_each_turn_of_the_loop() -> None:
    async def act(scene: Scene) -> None:
        for number in range(1, 301):
            scene.stand(f"p#{number}")
        await asyncio.sleep(1)
        scene.is_gone = True
        scene.change(leave=1)
        left, most = 300, 0
        while left:
            await asyncio.sleep(0)
            before, left = left, sum(not one.done() for one in scene.readers)
            most = max(most, before - left)
        assert most <= 50
        assert {type(one.exception()) for one in scene.readers} == {QueueDeleted}

    played(300, act)


def test_of_many_who_are_told_their_places_some_are_in_each_turn_of_the_loop() -> None:
    async def act(scene: Scene) -> None:
        told = [scene.stand(f"p#{number}") for number in range(1, 301)]
        before = most = 0
        while before < 300:
            await asyncio.sleep(0)
            now = sum(map(len, told))
            most, before = max(most, now - before), now
        assert most <= 50
        assert [positions(one) for one in told] == [[number] for number in range(1, 301)]

    played(300, act)


def test_while_nothing_changes_who_is_told_of_changes_only_costs_nothing() -> None:
    async def act(scene: Scene) -> None:
        for number in range(1, 101):
            scene.stand(f"p#{number}", is_quiet=True)
        await asyncio.sleep(POLL_MIN_S)
        looks = len(scene.looks)
        await asyncio.sleep(1_000)
        assert len(scene.looks) == looks

    played(100, act)


def test_who_is_far_back_costs_a_look_in_poll_min_at_most_however_often_the_line_changes() -> None:
    async def act(scene: Scene) -> None:
        for number in range(NEAR + 1, 101):
            scene.stand(f"p#{number}")
        await asyncio.sleep(1)
        scene.looks.clear()
        for number in range(600):
            scene.change(join=f"p#{number + 101}")
            await asyncio.sleep(0.1)
        assert sum(scene.looks) <= 80 * (60 / POLL_MIN_S + 1)

    played(100, act)


def test_those_who_stand_far_back_near_each_other_are_looked_at_together() -> None:
    async def act(scene: Scene) -> None:
        for number in range(NEAR + 1, NEAR + 101):
            scene.stand(f"p#{number}", is_quiet=True)
            scene.change()
            await asyncio.sleep(0.1)
        scene.looks.clear()
        await asyncio.sleep(1_000)
        assert sum(scene.looks) >= 99  # all but the last
        assert len(scene.looks) <= 10 / (POLL_MIN_S / 16) + 2

    played(NEAR + 100, act)


def test_who_was_dropped_from_afar_is_found_when_it_stands_there_again() -> None:
    async def act(scene: Scene) -> None:
        told = scene.stand("p#41")
        await asyncio.sleep(POLL_MIN_S / 2)
        scene.change(join="p#42")
        await asyncio.sleep(POLL_MAX_S - POLL_MIN_S)
        scene.line.remove("p#41")
        await asyncio.sleep(POLL_MIN_S / 2 + SOON_S)
        assert scene.restored
        scene.line.insert(40, "p#41")
        scene.change()
        await asyncio.sleep(SOON_S)
        assert positions(told) == [41, 41]

    played(41, act)


def test_who_has_been_told_its_place_and_has_left_is_kept_no_longer() -> None:
    async def act(scene: Scene) -> None:
        scene.stand("p#1")  # as long as somebody does, the follower lives
        await asyncio.sleep(1)
        left = [scene.come_and_go(f"p#{number}") for number in range(2, 101)]
        assert sum(one() is not None for one in left) == 0

    played(100, act)
