"""When everybody may have missed something all are woken, and no turn of the event loop wakes more than a few."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import chain
from typing import cast
from unittest.mock import MagicMock, Mock, create_autospec

import pytest

from harness import eventually
from headwayd.domain.limits import Limits
from headwayd.engine.engine import Engine
from headwayd.engine.lines import Line, Lines
from headwayd.engine.ports import Store
from headwayd.engine.standing.follower import Follower
from headwayd.engine.tasks import Tasks
from headwayd.engine.waking import Wake, Waking
from headwayd.engine.watching.board import Board
from headwayd.engine.watching.feed import Feed
from headwayd.engine.watching.producers import ProducerLine

SLEEPERS = 1_010
FEW = 50


class Turns:
    """Counts those of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._count()

    def _count(self) -> None:
        self.now += 1
        if not self._is_over:
            self._loop.call_soon(self._count)

    def end(self) -> None:
        self._is_over = True


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    made = Turns()
    yield made
    made.end()


class Sleepers:
    """Who is woken when."""

    def __init__(self, turns: Turns) -> None:
        self.woken: list[tuple[int, int]] = []  # the turn of the loop, and who
        self._turns = turns

    def wakes(self) -> Iterator[Wake]:
        return (partial(self._wake, number) for number in range(SLEEPERS))

    def _wake(self, number: int) -> None:
        self.woken.append((self._turns.now, number))

    def most_in_one_turn(self) -> int:
        return max(Counter(turn for turn, _ in self.woken).values())


async def test_all_are_woken_and_few_in_one_turn(tasks: Tasks, turns: Turns) -> None:
    sleepers = Sleepers(turns)
    Waking(sleepers.wakes, tasks.spawn).begin()
    await tasks.drain(60)
    assert [number for _, number in sleepers.woken] == list(range(SLEEPERS))
    assert sleepers.most_in_one_turn() <= FEW


async def test_who_cannot_be_woken_keeps_nobody_else_from_it(tasks: Tasks, turns: Turns) -> None:
    sleepers = Sleepers(turns)

    def fail() -> None:
        raise RuntimeError("asleep for good")

    Waking(lambda: chain([fail], sleepers.wakes(), [fail]), tasks.spawn).begin()
    await tasks.drain(60)
    assert len(sleepers.woken) == SLEEPERS


async def test_when_it_begins_anew_meanwhile_nobody_is_forgotten(tasks: Tasks, turns: Turns) -> None:
    sleepers, begun = Sleepers(turns), 0

    def spawn(*work: object) -> None:
        nonlocal begun
        begun += 1
        tasks.spawn(*work)  # type: ignore[arg-type]

    waking = Waking(sleepers.wakes, spawn)
    waking.begin()
    for _ in range(5):
        await asyncio.sleep(0)
    before = len(sleepers.woken)
    assert 0 < before < SLEEPERS
    waking.begin()
    await tasks.drain(60)
    assert [number for _, number in sleepers.woken[before:]] == list(range(SLEEPERS))
    assert sleepers.most_in_one_turn() <= FEW
    assert begun == 1
    waking.begin()  # and again when all was done
    await tasks.drain(60)
    assert len(sleepers.woken) == before + 2 * SLEEPERS


class Hopeful:
    """Waits in a line, and counts its tries."""

    rank = 0
    leaves_more = True

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    async def attempt(self) -> bool:
        self._note()
        return False

    def fail(self, error: Exception) -> None: ...


async def test_of_those_who_wait_on_many_queues_few_try_in_one_turn(tasks: Tasks, turns: Turns) -> None:
    tries = list[int]()

    async def arm(_queue: str) -> bool:
        return False

    lines = Lines(arm, tasks.spawn, kind="consumers", checks_a_round=0)
    for number in range(SLEEPERS):
        lines.join(f"q{number}", Hopeful(lambda: tries.append(turns.now)))
    asleep = list(lines._lines.values())
    await eventually(lambda: all(line.quiet_since is not None for line in asleep), within=60)
    tries.clear()
    Waking(lines.wakes, tasks.spawn).begin()
    await eventually(lambda: len(tries) >= SLEEPERS, within=60)
    assert max(Counter(tries).values()) <= FEW


async def test_after_a_reconnect_all_kinds_of_sleepers_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(cast(Store, MagicMock(quiet_at_once=1)), process="test", limits=Limits())
    feed, board, producers, follower, getters, putters = (
        create_autospec(kind, instance=True) for kind in (Feed, Board, ProducerLine, Follower, Line, Line)
    )
    putters.__len__.return_value = 1
    restore = Mock()
    monkeypatch.setattr(engine._watching, "_feeds", {"q": feed})
    monkeypatch.setattr(engine._watching, "_boards", {"q": board})
    monkeypatch.setattr(engine._watching, "_producers", {"q": producers})
    monkeypatch.setattr(engine._standing, "_followers", {"q": follower})
    monkeypatch.setattr(engine._getters, "_lines", {"q": getters})
    monkeypatch.setattr(engine._putters, "_lines", {"q": putters})
    monkeypatch.setattr(engine._putting, "_restore", restore)
    engine._kick(None, False)
    await engine._tasks.drain(60)
    restore.assert_called_once_with("q")
    for wake in (feed.lose_track, board.kick_all, producers.kick, follower.kick, getters.kick, putters.kick):
        wake.assert_called_once_with()
