"""How much of what gRPC has done is followed in one turn of the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from headwayd.rpc.core import completions as tested
from headwayd.rpc.core.completions import Completions, Tag

MOST = 64
_NOTHING = SimpleNamespace(tag=None, completion_type=cygrpc.CompletionType.queue_timeout)
_ENDED = SimpleNamespace(tag=None, completion_type=cygrpc.CompletionType.queue_shutdown)


class FakeQueue:
    """What is done, in order. The thread is told of the first of it when `stir` is called, and then of the end."""

    def __init__(self) -> None:
        self.done: deque[Tag] = deque()
        self._stirred = threading.Semaphore(0)

    def poll(self, deadline: float | None = None) -> Any:
        if deadline is None:
            self._stirred.acquire()
        if self.done:
            return SimpleNamespace(tag=self.done.popleft())
        return _ENDED if deadline is None else _NOTHING

    def stir(self) -> None:
        """Wakes the thread."""
        self._stirred.release()

    def shutdown(self) -> None:
        self.stir()


class Rig:
    """Completions, what was followed, and how much in each turn of the loop."""

    def __init__(self) -> None:
        self.completions = Completions(pauses=lambda _calls: False)
        self.queue: FakeQueue = self.completions.queue
        self.followed: list[int] = []

    def do(self, count: int) -> None:
        """So much is done at once."""
        first = len(self.followed) + len(self.queue.done)
        self.queue.done += [Tag(partial(self._follow, number)) for number in range(first, first + count)]

    def _follow(self, number: int, _event: object) -> None:
        self.followed.append(number)

    async def most(self, until: int) -> int:
        """In a turn, until so much was followed."""
        most = 0
        async with asyncio.timeout(60):
            while (before := len(self.followed)) < until:
                await asyncio.sleep(0)
                most = max(most, len(self.followed) - before)
        return most


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    grpcs = SimpleNamespace(CompletionQueue=FakeQueue, CompletionType=cygrpc.CompletionType)
    monkeypatch.setattr(tested, "cygrpc", grpcs)
    rig = Rig()
    yield rig
    rig.completions.close()


async def test_of_much_that_is_done_at_once_some_is_followed_in_each_turn(rig: Rig) -> None:
    rig.do(1_000)
    rig.queue.stir()
    assert await rig.most(1_000) <= MOST
    assert rig.followed == list(range(1_000))


async def test_who_looks_follows_no_more_than_that_either_and_the_rest_is_not_forgotten(rig: Rig) -> None:
    rig.do(1_000)
    for _ in range(10):  # as many write in this turn
        rig.completions.look()
    assert 0 < len(rig.followed) <= MOST
    assert await rig.most(1_000) <= MOST
    assert rig.followed == list(range(1_000))


async def test_others_have_their_turns_while_there_is_always_more(rig: Rig) -> None:
    most = 10_000

    def again(_event: object) -> None:
        rig.followed.append(0)
        if len(rig.followed) < most:
            rig.queue.done.append(Tag(again))

    rig.queue.done.append(Tag(again))
    rig.queue.stir()
    await rig.most(2)
    begun: list[int] = []
    rig.completions.at_next_turn(lambda: begun.append(len(rig.followed)))
    await rig.most(most)
    assert begun
    assert begun[0] <= 4 * MOST
