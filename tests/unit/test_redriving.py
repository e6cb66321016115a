"""Redrive over a store that is a list: bounded steps, the rate, a full target, and stopping at any moment.

The clock is the test's (`harness.clocks`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from harness.clocks import run
from headwayd.domain.errors import QueueClosed, StoreUnavailable
from headwayd.domain.model import RedriveOrder, RedriveProgress
from headwayd.engine.ports import RedriveBounds, RedriveStep, Store
from headwayd.engine.redriving import MOST_IN_A_STEP, redrive

LATER = RedriveBounds(77, "0f", "a0")


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Dead:
    """The dead of one queue, oldest first. `room` is what the target still takes, `takes_s` how long a step lasts."""

    messages: list[str]
    room: int = 10**9
    takes_s: float = 0.0
    asked: list[tuple[int, RedriveBounds, int]] = field(default_factory=list)  # ids, bounds, most
    moved_at: list[float] = field(default_factory=list)
    ended_steps: int = 0
    error_after: int = 10**9

    async def redrive(
        self,
        queue: str,
        to_queue: str,
        *,
        message_ids: Sequence[str],
        bounds: RedriveBounds,
        most: int,
        budget_s: float,
    ) -> RedriveStep:
        assert (queue, to_queue, budget_s) == ("q", "target", 2.0)
        self.asked.append((len(message_ids), bounds, most))
        await asyncio.sleep(self.takes_s)
        self.ended_steps += 1
        if len(self.asked) > self.error_after:
            raise StoreUnavailable("away")
        not_found, moved, done = [], 0, 0
        candidates = list(message_ids) or self.messages[:most]
        for message in candidates:
            if message not in self.messages:
                not_found.append(message)
            elif moved == most or not self.room:
                break
            else:
                self.messages.remove(message)
                self.room -= 1
                moved += 1
                self.moved_at.append(now())
            done += 1
        return RedriveStep(
            moved=moved,
            done=done if message_ids else 0,
            not_found=not_found,
            remaining=0 if message_ids else len(self.messages),
            bounds=LATER,
            is_full=not self.room,
        )

    async def all(self, *, message_ids: Sequence[str] = (), rate: float = 0.0) -> list[RedriveProgress]:
        return [progress async for progress in self.stream(message_ids=message_ids, rate=rate)]

    def stream(self, *, message_ids: Sequence[str] = (), rate: float = 0.0) -> Any:
        order = RedriveOrder(queue="q", to_queue="target", message_ids=message_ids, rate=rate)
        return redrive(cast(Store, self), order, budget_s=2.0)


def dead(count: int, **how: Any) -> Dead:
    return Dead([f"m{number}" for number in range(count)], **how)


def test_nothing_dead_is_told_at_once_and_is_the_end() -> None:
    store = dead(0)
    assert run(store.all) == [RedriveProgress(redriven=0, remaining=0)]


def test_all_go_in_bounded_steps_within_what_the_first_one_found() -> None:
    store = dead(2 * MOST_IN_A_STEP + 1)
    told = run(store.all)
    assert store.asked == [(0, bounds, MOST_IN_A_STEP) for bounds in (RedriveBounds(), LATER, LATER)]
    assert (told[0].redriven, told[0].remaining) == (MOST_IN_A_STEP, MOST_IN_A_STEP + 1)
    assert told[-1] == RedriveProgress(redriven=2 * MOST_IN_A_STEP + 1, remaining=0)


def test_ids_are_dealt_with_each_and_the_unknown_ones_told_at_the_end() -> None:
    store = dead(5)
    told = run(lambda: store.all(message_ids=["m3", "x", "m0", "y"]))
    assert told == [RedriveProgress(redriven=2, remaining=0, not_found_ids=("x", "y"))]
    assert store.messages == ["m1", "m2", "m4"]


def test_many_ids_go_in_bounded_steps() -> None:
    store = dead(2 * MOST_IN_A_STEP)
    told = run(lambda: store.all(message_ids=list(store.messages)))
    assert [asked for asked, _, _ in store.asked] == [MOST_IN_A_STEP, MOST_IN_A_STEP]
    assert told[0].remaining == MOST_IN_A_STEP
    assert told[-1].redriven == 2 * MOST_IN_A_STEP


@pytest.mark.parametrize("rate", [0.001, 0.5, 7.0, 100.0, 4_000.0, 1_000_000.0])
def test_no_second_sees_more_than_the_rate_and_steps_are_evenly_spread(rate: float) -> None:
    store = dead(5 if rate < 1 else 40 if rate < 50 else 10_000)
    count = len(store.messages)
    run(lambda: store.all(rate=rate))
    times = store.moved_at
    assert len(times) == count
    for index, first in enumerate(times[:: max(count // 50, 1)]):
        start = index * max(count // 50, 1)
        within = sum(1 for at in times[start:] if at < first + 1 - 1e-6)
        assert within <= max(rate, 1) + 1e-6
    span = times[-1] - times[0]
    most = max(most for _, _, most in store.asked)
    assert span == pytest.approx((count - most) / rate, rel=0.2, abs=0.2)


def test_a_rate_makes_up_for_nothing_after_a_wait_for_room() -> None:
    store = dead(40, room=10)

    async def redriven() -> None:
        redriving = asyncio.ensure_future(store.all(rate=10))
        await asyncio.sleep(60)
        assert len(store.moved_at) == 10
        store.room = 100
        await redriving

    run(redriven)
    assert store.moved_at[-1] - store.moved_at[10] == pytest.approx(2.9, abs=0.01)


def test_a_full_target_is_asked_again_ten_times_a_second() -> None:
    store = dead(3, room=1)

    async def redriven() -> list[RedriveProgress]:
        redriving = asyncio.ensure_future(store.all())
        await asyncio.sleep(10)
        assert 95 <= len(store.asked) <= 101
        store.room = 100
        return await redriving

    told = run(redriven)
    assert (told[0].redriven, told[0].remaining) == (1, 2)
    assert (told[-1].redriven, told[-1].remaining) == (3, 0)


def test_progress_is_told_at_once_and_then_ten_times_a_second_at_most() -> None:
    store = dead(10_000, takes_s=0.01)
    at: list[float] = []

    async def redriven() -> None:
        async for _ in store.stream(rate=5_000):
            at.append(now())  # noqa: PERF401 - when each one came

    run(redriven)
    assert at[0] == pytest.approx(0.01)
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(at[:-1]))
    assert len(at) > 10


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_who_stops_it_stops_it_after_the_step_under_way(how: str) -> None:
    store = dead(10 * MOST_IN_A_STEP, takes_s=1.0)

    async def stopped() -> None:
        stream = store.stream()
        await anext(stream)
        if how == "cancelled":
            following = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.5)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            assert (len(store.asked), store.ended_steps) == (2, 2)
        await stream.aclose()
        await asyncio.sleep(10)
        assert len(store.asked) == store.ended_steps == (2 if how == "cancelled" else 1)

    run(stopped)


def test_an_error_of_a_step_ends_it() -> None:
    store = dead(10 * MOST_IN_A_STEP, error_after=2)

    async def failing() -> None:
        with pytest.raises(StoreUnavailable):
            await store.all()

    run(failing)
    assert len(store.asked) == 3


def test_a_step_that_fails_after_the_caller_has_gone_is_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    store = dead(1, takes_s=1.0, error_after=0)

    async def cancelled() -> None:
        following = asyncio.ensure_future(anext(store.stream()))
        await asyncio.sleep(0.5)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following

    run(cancelled)
    assert not caplog.records


def test_the_targets_refusal_is_told_before_anything_else() -> None:
    class Closed(Dead):
        async def redrive(self, *args: Any, **kwargs: Any) -> RedriveStep:
            raise QueueClosed("closed", metadata={"queue": "target"})

    async def failing() -> None:
        with pytest.raises(QueueClosed):
            await Closed(["m"]).all()

    run(failing)
