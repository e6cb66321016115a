"""The reader of a producer line: what it tells whom, when, and how seldom it looks. The clock is the test's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from harness.clocks import run
from headwayd.domain.blocked import BlockedPlaces, BlockedPut, ToldBlocked, ToldProducer
from headwayd.domain.errors import HeadwayError, OutcomeUnknown, QueueNotFound, ShuttingDown, StoreUnavailable
from headwayd.domain.model import Policy
from headwayd.domain.standing import ToldOver
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching import producers
from headwayd.engine.watching.producers import ProducerLine
from headwayd.engine.watching.telling import TRUE_FOR_S
from unit.watching.fake_queue import FakeQueue


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeStore:
    """A producer line that is a list of names. With `error` set every look raises it; a look takes `look_s`."""

    def __init__(self) -> None:
        self.line: list[str] = []
        self.generation = "g1"
        self.is_closed = False
        self.error: HeadwayError | None = None
        self.look_s = 0.0
        self.looks: list[Sequence[str]] = []
        self.looked_at: list[float] = []

    async def arm_blocked(self, queue: str) -> None: ...

    async def blocked(
        self, queue: str, names: Sequence[str], *, again: Sequence[BlockedPut] = (), budget_s: float
    ) -> BlockedPlaces:
        self.looks.append(sorted(names))
        self.looked_at.append(now())
        if self.error is not None:
            raise self.error
        positions = [self.line.index(name) + 1 if name in self.line else 0 for name in names]
        numbers = replace(
            FakeQueue(self.generation).numbers, producers_waiting=len(self.line), is_closed=self.is_closed
        )
        await asyncio.sleep(self.look_s)
        polls = Policy(poll_base_ms=100, poll_per_position_ms=10, poll_max_ms=1_000)
        return BlockedPlaces(numbers=numbers, polls=polls, positions=positions)


class Rig:
    """One line and what it tells."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.tasks = Tasks()
        self.line = ProducerLine("q", cast("Store", self.store), self.tasks.spawn)

    def watch(self, name: str = "me", *, budget_s: float = 2.0) -> AsyncGenerator[ToldProducer, None]:
        return self.line.watch(name, budget_s)

    async def end(self, *streams: AsyncGenerator[ToldProducer, None]) -> None:
        """Everybody goes, and then the reader."""
        for stream in streams:
            await stream.aclose()
        await self.tasks.drain(1)
        assert not len(self.line)

    def change(self, *line: str) -> None:
        self.store.line = list(line)
        self.line.kick()


async def position(stream: AsyncGenerator[ToldProducer, None]) -> int:
    told = await anext(stream)
    assert isinstance(told, ToldBlocked), told
    return told.position


def test_a_slow_reader_gets_the_latest_and_nobody_looks_meanwhile() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        rig.change("a", "b", "me")
        assert await position(stream) == 3
        for left in (("b", "me"), ("me",), ()):
            rig.change(*left)
            await asyncio.sleep(60)
        assert len(rig.store.looks) == 1
        assert await position(stream) == 0
        await rig.end(stream)

    run(scene)


def test_many_are_told_by_one_look_which_asks_for_each_name_once() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.change("a", "b")
        streams = [rig.watch("ab"[number % 2]) for number in range(50)]
        assert await asyncio.gather(*map(position, streams)) == [1, 2] * 25
        assert rig.store.looks[-1] == ["a", "b"]
        assert len(rig.store.looks) <= 2
        await rig.end(*streams)

    run(scene)


def test_looks_keep_their_distance_however_often_the_line_changes() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        await position(stream)
        reading = asyncio.create_task(position(stream))
        for _ in range(1_000):
            rig.change("other")  # nothing to tell of
            await asyncio.sleep(0.001)
        spans = [after - before for before, after in itertools.pairwise(rig.store.looked_at)]
        assert spans == pytest.approx([producers.LOOK_EVERY_S] * 12)
        rig.change("me")
        assert await reading == 1
        await rig.end(stream)

    run(scene)


def test_while_nothing_changes_and_none_waits_it_only_makes_sure_now_and_then() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        await position(stream)
        reading = asyncio.create_task(position(stream))
        await asyncio.sleep(60)
        assert len(rig.store.looks) <= 13
        rig.store.line = ["me"]  # and the hint is lost
        assert await reading == 1
        assert now() <= 65
        await rig.end(stream)

    run(scene)


def test_near_places_are_told_each_and_far_ones_by_a_tenth_after_poll_min_and_all_by_poll_max() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        line = [*map(str, range(99)), "me"]
        rig.change(*line)
        assert await position(stream) == 100
        begun = now()
        poll_min_s, poll_max_s = 1.0, 11.0  # the longest that the policy has: 100 is far back
        rig.change(*line[9:])
        told = asyncio.create_task(position(stream))
        await asyncio.sleep(poll_max_s - 0.1)
        assert not told.done()
        assert await told == 91
        assert now() - begun == pytest.approx(poll_max_s, abs=0.2)
        begun = now()
        rig.change(*line[20:])
        assert await position(stream) == 80
        assert now() - begun == pytest.approx(poll_min_s, abs=0.2)
        begun = now()
        for left in (20, 19, 3, 2):
            rig.change(*line[-left:])
            assert await position(stream) == left
        assert now() - begun < 1
        assert await position(stream) == 2
        assert now() - begun == pytest.approx(10.11, abs=0.5)  # poll_max of the second
        await rig.end(stream)

    run(scene)


def test_while_nothing_changes_only_those_are_looked_at_for_whom_it_is_time() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.change("a", "b")
        first = rig.watch("a")
        assert await position(first) == 1
        await asyncio.sleep(0.5)
        second = rig.watch("b")
        assert await position(second) == 2
        rig.store.looks.clear()
        await asyncio.gather(position(first), position(second))
        assert [names for names in rig.store.looks if names != ["a", "b"]] == [["a"], ["b"]]  # the others make sure
        assert len(rig.store.looks) <= 4
        await rig.end(first, second)

    run(scene)


def test_who_is_due_is_found_without_going_through_all_who_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    due_at = producers._Watch.due_at

    def counted(watch: producers._Watch) -> float:
        nonlocal asked
        asked += 1
        return due_at(watch)

    monkeypatch.setattr(producers._Watch, "due_at", counted)

    async def scene() -> None:
        rig = Rig()
        streams = [rig.watch(str(number)) for number in range(300)]
        rig.change(*map(str, range(300)))
        await asyncio.gather(*map(position, streams))
        reading = []
        for stream in streams:  # each is ready again in a turn of its own
            reading.append(asyncio.ensure_future(anext(stream)))
            await asyncio.sleep(0)
        rig.line.fail_all(ShuttingDown("down"))
        await asyncio.gather(*reading, return_exceptions=True)
        await rig.end()

    run(scene)
    assert asked <= 10 * 300


@pytest.mark.parametrize("what", ["told", "closed", "gone", "down"])
def test_of_many_some_learn_in_each_turn_of_the_loop(what: str) -> None:
    async def scene() -> None:
        rig = Rig()
        streams = [rig.watch(str(number)) for number in range(300)]
        await asyncio.gather(*map(position, streams))
        reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(1)
        if what == "told":
            rig.change(*map(str, range(300)))
        elif what == "down":
            rig.line.fail_all(ShuttingDown("down"))
        else:
            rig.store.is_closed = what == "closed"
            rig.store.error = QueueNotFound("gone") if what == "gone" else None
            rig.line.kick()
        left, most = len(reading), 0
        while left:
            await asyncio.sleep(0)
            before, left = left, sum(not one.done() for one in reading)
            most = max(most, before - left)
        assert most <= 50
        ends = await asyncio.gather(*reading, return_exceptions=True)
        over = {"told": ToldBlocked, "down": ShuttingDown}.get(what, ToldOver)
        assert {type(end) for end in ends} == {over}
        await rig.end(*streams)

    run(scene)


def test_what_was_true_too_long_ago_is_not_told() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        assert await position(stream) == 0
        rig.store.look_s = TRUE_FOR_S + 0.1
        rig.change("a", "me")
        reading = asyncio.create_task(position(stream))
        await asyncio.sleep(0.5)
        rig.store.look_s = 0.0
        rig.store.line = ["me"]  # without a hint
        assert await reading == 1
        await rig.end(stream)

    run(scene)


def test_another_life_of_the_queue_ends_it() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        assert await position(stream) == 0
        rig.store.generation = "g2"
        rig.change("me")
        assert [told async for told in stream] == [ToldOver(is_deleted=True)]
        await rig.end()

    run(scene)


def test_a_queue_that_goes_or_closes_ends_it_and_one_that_never_was_is_an_error() -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        assert await position(stream) == 0
        rig.store.error = QueueNotFound("gone")
        rig.line.kick()
        assert [told async for told in stream] == [ToldOver(is_deleted=True)]
        with pytest.raises(QueueNotFound):
            await anext(rig.watch())
        rig.store.error, rig.store.is_closed = None, True
        assert [told async for told in rig.watch()] == [ToldOver(is_deleted=False)]
        await rig.end()

    run(scene)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no", metadata={"cause": "REFUSED"}), OutcomeUnknown("lost", metadata={})]
)
def test_trouble_is_outlasted_by_who_was_told_and_told_in_time_to_who_was_not(error: HeadwayError) -> None:
    async def scene() -> None:
        rig = Rig()
        stream = rig.watch()
        assert await position(stream) == 0
        reading = asyncio.create_task(position(stream))
        rig.store.error = error
        rig.line.kick()
        begun = now()
        with pytest.raises(StoreUnavailable):
            await anext(rig.watch(budget_s=0.5))
        assert now() - begun <= 0.5
        await asyncio.sleep(60)
        assert not reading.done()
        rig.store.error = None
        rig.change("me")
        assert await reading == 1
        await rig.end(stream)

    run(scene)


def test_going_down_ends_who_waits_and_who_is_slow() -> None:
    async def scene() -> None:
        rig = Rig()
        ready, slow = rig.watch(), rig.watch()
        await position(ready)
        await position(slow)
        reading = asyncio.create_task(position(ready))
        await asyncio.sleep(0)
        rig.line.fail_all(ShuttingDown("down"))
        for end in (reading, anext(slow)):
            with pytest.raises(ShuttingDown):
                await end
        await rig.end()

    run(scene)
