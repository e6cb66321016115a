"""One board, however many watch a queue's numbers: whose queue has ended, and how seldom it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from harness.clocks import run
from headwayd.domain.errors import OutcomeUnknown, QueueDeleted, QueueNotFound, ShuttingDown
from headwayd.domain.watching import ToldQueue
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching import board
from headwayd.engine.watching.estimates import Estimates, NoEstimator
from headwayd.engine.watching.watching import Watching
from unit.watching.fake_queue import FakeQueue, FakeStore

HOUR_S = 3_600.0
Stream = AsyncGenerator[ToldQueue, None]


class Rig:
    """One queue, and those who watch its numbers."""

    def __init__(self, queue: FakeQueue | None = None) -> None:
        self.store = FakeStore(queue)
        self.tasks = Tasks()
        self.watching = Watching(cast(Store, self.store), self.tasks.spawn, Estimates(NoEstimator))
        self.streams: list[Stream] = []
        self.sleeping: list[asyncio.Future[ToldQueue]] = []

    def watch(self, interval_s: float = HOUR_S) -> Stream:
        self.streams.append(self.watching.queue("q", interval_s, budget_s=2.0))
        return self.streams[-1]

    async def sleeper(self) -> asyncio.Future[ToldQueue]:
        """One that was told once, and is told again in an hour: what it is told then."""
        stream = self.watch()
        await anext(stream)
        self.sleeping.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(1)
        return self.sleeping[-1]

    def change(self) -> None:
        """Something, as it is heard."""
        self.watching.kick("q")

    def replace(self, queue: FakeQueue | None) -> None:
        """Another life, or none, as it is heard."""
        self.store.queue = queue
        self.watching.kick("q")
        self.watching.kick_producers("q")

    async def end(self) -> None:
        """Everybody goes, and then the reader."""
        for told in self.sleeping:
            told.cancel()
        await asyncio.gather(*self.sleeping, return_exceptions=True)
        for stream in self.streams:
            await stream.aclose()
        await self.tasks.drain(1)
        assert not len(self.watching)


def test_who_comes_to_a_new_life_is_not_told_that_the_old_one_ended() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.replace(FakeQueue("g2"))
        assert (await anext(rig.watch())).queue.generation == "g2"
        with pytest.raises(QueueDeleted):
            await old
        await rig.end()

    run(scene)


def test_who_comes_before_the_hint_is_not_told_the_old_lifes_numbers() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.store.queue = FakeQueue("g2")
        assert (await anext(rig.watch())).queue.generation == "g2"
        with pytest.raises(QueueDeleted):
            await old
        await rig.end()

    run(scene)


def test_who_comes_when_the_queue_is_gone_is_told_that_there_is_none() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.store.queue = None
        with pytest.raises(QueueNotFound):
            await anext(rig.watch())
        with pytest.raises(QueueDeleted):
            await old
        await rig.end()

    run(scene)


def test_a_read_that_began_before_says_nothing_to_who_comes_after_it() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.replace(None)
        while not old.done():
            await asyncio.sleep(0)
            if rig.store.queue is None and rig.store.asked["places"] == 2:  # it is on its way
                new = asyncio.ensure_future(anext(rig.watch()))
                await asyncio.sleep(0)
                rig.store.queue, rig.store.asked["places"] = FakeQueue("g2"), 0
        assert (await new).queue.generation == "g2"
        await rig.end()

    run(scene)


@pytest.mark.parametrize("after", [None, "g2"])
def test_who_sleeps_learns_at_once_that_its_queue_is_no_more(after: str | None) -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = [await rig.sleeper() for _ in range(3)]
        began = asyncio.get_running_loop().time()
        rig.replace(None if after is None else FakeQueue(after))
        for one in old:
            with pytest.raises(QueueDeleted):
                await one
        assert asyncio.get_running_loop().time() - began <= board.READ_EVERY_S
        await rig.end()

    run(scene)


def test_who_sleeps_learns_it_also_if_the_first_read_after_that_is_lost() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.store.error = OutcomeUnknown("lost")
        rig.replace(None)
        await asyncio.sleep(0.2)
        rig.store.error = None
        began = asyncio.get_running_loop().time()
        with pytest.raises(QueueDeleted):
            await old
        assert asyncio.get_running_loop().time() - began <= 2 * board.CHECK_EVERY_S
        await rig.end()

    run(scene)


@pytest.mark.parametrize("interval_s", [0.1, HOUR_S], ids=["ready", "asleep"])
@pytest.mark.parametrize("after", [None, "g2"])
def test_of_many_whose_queue_is_no_more_some_end_in_each_turn_of_the_loop(after: str | None, interval_s: float) -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        streams = [rig.watch(interval_s) for _ in range(500)]
        await asyncio.gather(*map(anext, streams))
        rig.sleeping += [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(1)
        rig.replace(None if after is None else FakeQueue(after))
        left, most = 500, 0
        while left:
            await asyncio.sleep(0)
            before, left = left, sum(not told.done() for told in rig.sleeping)
            most = max(most, before - left)
        assert most <= 50
        ends = await asyncio.gather(*rig.sleeping, return_exceptions=True)
        assert {type(end) for end in ends} == {QueueDeleted}, "or it was shown what is not its own"
        await rig.end()

    run(scene)


def test_who_asks_while_many_end_with_it_ends_at_once_and_sees_nothing_of_the_next_life() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        slow = [rig.watch() for _ in range(500)]
        await asyncio.gather(*map(anext, slow))
        first = await rig.sleeper()
        rig.replace(FakeQueue("g2"))
        assert (await anext(rig.watch())).queue.generation == "g2"
        rig.sleeping += [asyncio.ensure_future(anext(stream)) for stream in slow]
        for _ in range(3):
            await asyncio.sleep(0)
        assert {type(told.exception()) for told in rig.sleeping if told is not first and told.done()} == {QueueDeleted}
        assert sum(not told.done() for told in rig.sleeping) <= 1
        await rig.end()

    run(scene)


def test_going_down_ends_also_who_is_about_to_end() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        streams = [rig.watch() for _ in range(100)]
        await asyncio.gather(*map(anext, streams))
        rig.sleeping += [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(1)
        [board_of_q] = rig.watching._boards.values()
        board_of_q._end_others("g2")
        assert not len(board_of_q)
        rig.watching.fail_all(ShuttingDown("going down"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert {type(told.exception()) for told in rig.sleeping if told.done()} == {QueueDeleted}
        assert all(told.done() for told in rig.sleeping)
        await rig.end()

    run(scene)


def test_while_everybody_sleeps_changes_cost_nothing() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        for _ in range(3):
            _ = await rig.sleeper()
        before = dict(rig.store.asked)
        for _ in range(1_000):
            rig.change()
            rig.watching.kick_consumers("q")
            await asyncio.sleep(0.1)
        assert rig.store.asked == before
        await rig.end()

    run(scene)


def test_while_everybody_sleeps_a_busy_producer_line_costs_a_read_a_second_at_most() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        _ = await rig.sleeper()
        before = rig.store.asked["describe"]
        for _ in range(600):
            rig.watching.kick_producers("q")
            await asyncio.sleep(0.1)
        assert rig.store.asked["describe"] - before <= 61
        await rig.end()

    run(scene)


@pytest.mark.parametrize("kick", ["kick", "kick_consumers", "kick_producers"])
def test_who_is_ready_costs_a_read_for_each_change_of_any_line_and_ten_a_second_at_most(kick: str) -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        stream = rig.watch(0.1)
        await anext(stream)
        rig.sleeping.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(1)
        before = rig.store.asked["describe"]
        for changes in range(1, 4):
            getattr(rig.watching, kick)("q")
            await asyncio.sleep(0.5)
            assert rig.store.asked["describe"] == before + changes
        for _ in range(1_000):
            getattr(rig.watching, kick)("q")
            await asyncio.sleep(0.01)
        assert rig.store.asked["describe"] <= before + 3 + 10 / board.READ_EVERY_S + 1
        await rig.end()

    run(scene)


def test_an_idle_queue_is_read_every_nine_seconds_and_armed_once() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        stream = rig.watch(0.1)
        await anext(stream)
        rig.sleeping.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(90)
        assert rig.store.asked["describe"] <= 11
        assert rig.store.asked["arm_standing"] == rig.store.asked["arm_blocked"] == 1
        await rig.end()

    run(scene)


def test_who_comes_to_a_queue_that_is_watched_is_told_it_as_of_now() -> None:
    async def scene() -> None:
        queue = FakeQueue("g1")
        rig = Rig(queue)
        _ = await rig.sleeper()
        queue.now += 5_000
        assert (await anext(rig.watch())).at_ms == queue.now
        await rig.end()

    run(scene)


def test_those_who_come_together_cost_few_reads() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        told = await asyncio.gather(*(anext(rig.watch()) for _ in range(500)))
        assert {one.queue.generation for one in told} == {"g1"}
        assert rig.store.asked["describe"] <= 2
        await rig.end()

    run(scene)


def test_who_comes_after_everybody_was_sent_away_is_served() -> None:
    async def scene() -> None:
        rig = Rig(FakeQueue("g1"))
        old = await rig.sleeper()
        rig.watching.fail_all(ShuttingDown("going down"))
        assert (await anext(rig.watch())).queue.generation == "g1"
        with pytest.raises(ShuttingDown):
            await old
        await rig.end()

    run(scene)
