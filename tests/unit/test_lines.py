"""Lines of waiters: no change is slept through, whenever its hint comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness import eventually
from harness.clocks import run
from headwayd.domain.errors import HeadwayError, ShuttingDown
from headwayd.engine.lines import Line


class Hints:
    """Hints as a store gives them: one for each time that was asked, and none for what nobody asked about."""

    def __init__(self) -> None:
        self.is_armed = False
        self.finds = True  # what arming says
        self.line: Line | None = None

    async def arm(self) -> bool:
        self.is_armed = True
        return self.finds

    def change(self, *, is_call: bool = False) -> None:
        if (self.is_armed or is_call) and self.line is not None:
            self.is_armed = False
            self.line.kick(is_call=is_call)


class Waiter:
    """Wants one message."""

    rank = 0
    leaves_more = True

    def __init__(self, messages: list[str]) -> None:
        self.messages = messages
        self.tries = 0
        self.served = asyncio.Event()

    async def attempt(self) -> bool:
        self.tries += 1
        if self.messages:
            self.messages.pop()
            self.served.set()
        return self.served.is_set()

    def fail(self, error: HeadwayError) -> None:
        raise AssertionError(error)


async def turns() -> None:
    """Turns of the loop: a line tries, arms, tries again, and sleeps."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_hint_that_comes_right_after_it_was_asked_for_is_asked_for_again() -> None:
    """The change that it told of was somebody else's gain. The next one must be heard, too."""
    hints, messages = Hints(), list[str]()

    async def arm_and_lose_to_another_process() -> bool:
        await hints.arm()
        if waiter.tries == 1:
            hints.change()  # put there, and taken there
        return True

    line = Line(arm_and_lose_to_another_process, most_at_once=16)
    hints.line = line
    waiter = Waiter(messages)
    line.join(waiter)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await turns()
        assert waiter.tries >= 2
        messages.append("put by another process")
        hints.change()
        await waiter.served.wait()
        await serving


async def test_a_hint_that_comes_with_the_message_of_the_first_is_asked_for_again_for_the_second() -> None:
    hints, messages = Hints(), list[str]()

    async def arm_and_be_given_one() -> bool:
        await hints.arm()
        if not first.served.is_set():
            messages.append("for the first")
            hints.change()
        return True

    line = Line(arm_and_be_given_one, most_at_once=16)
    hints.line = line
    first, second = Waiter(messages), Waiter(messages)
    line.join(first)
    line.join(second)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await first.served.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        messages.append("put by another process")
        hints.change()
        await second.served.wait()
        await serving


@pytest.mark.parametrize("how", ["leave", "forget"])
async def test_a_line_ends_as_soon_as_the_last_waiter_has_gone(how: str) -> None:
    hints = Hints()
    line = Line(hints.arm, most_at_once=16)
    first, last = Waiter([]), Waiter([])
    line.join(first)
    line.join(last)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        for waiter in (first, last):
            await turns()
            assert not serving.done()
            if how == "leave":
                await line.leave(waiter)
            else:
                line.forget(waiter)
        await serving


async def test_one_who_was_left_nothing_is_tried_only_when_something_changes() -> None:
    hints, messages = Hints(), ["for the first"]
    hints.finds = False
    line = Line(hints.arm, most_at_once=16)
    hints.line = line
    first, second = Waiter(messages), Waiter(messages)
    first.leaves_more = False
    line.join(first)
    line.join(second)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await first.served.wait()
        await turns()
        assert (hints.is_armed, second.tries) == (True, 0)
        messages.append("for the second")
        hints.change()
        await serving
    assert second.tries == 1


@pytest.mark.parametrize(("finds", "tries"), [(True, 1), (False, 0)])
async def test_one_who_comes_alone_and_has_tried_is_tried_again_if_arming_says_so(*, finds: bool, tries: int) -> None:
    hints = Hints()
    hints.finds = finds
    line = Line(hints.arm, most_at_once=16)
    waiter = Waiter([])
    line.join(waiter, has_tried=True)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await turns()
        assert (hints.is_armed, waiter.tries) == (True, tries)
        line.forget(waiter)
        await serving


async def test_a_line_that_is_told_to_looks_once_though_arming_said_that_it_is_in_vain() -> None:
    hints, messages = Hints(), list[str]()
    hints.finds = False
    line = Line(hints.arm, most_at_once=16)
    waiter = Waiter(messages)
    line.join(waiter, has_tried=True)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await turns()
        assert line.quiet_since is not None
        line.look()
        await turns()
        assert (hints.is_armed, waiter.tries) == (True, 1)
        messages.append("told to nobody")
        line.look()
        await serving
    assert (waiter.served.is_set(), waiter.tries) == (True, 2)


def test_a_line_that_is_called_arms_now_and_then_only() -> None:
    async def scene() -> None:
        hints, messages = Hints(), list[str]()
        hints.finds = False
        line = Line(hints.arm, most_at_once=16, rest_s=0.2)
        hints.line = line
        waiter = Waiter(messages)
        line.join(waiter, has_tried=True)
        serving = asyncio.create_task(line.serve())
        async with asyncio.timeout(5):
            await turns()
            assert hints.is_armed
            hints.change()
            await turns()
            assert (hints.is_armed, waiter.tries) == (True, 1)  # nobody called
            for tries in (2, 3):
                hints.change(is_call=True)
                await turns()
                assert (hints.is_armed, waiter.tries) == (False, tries)
            await eventually(lambda: hints.is_armed)
            messages.append("put by a foreign client")
            hints.change()
            await waiter.served.wait()
            await serving

    run(scene)


@asynccontextmanager
async def first_served(*, rest_s: float) -> AsyncIterator[tuple[Hints, Line, Waiter, Waiter]]:
    """A line, its only waiter, whom a call has served, and one who has not come yet. Serving must end in the end."""
    hints, messages = Hints(), ["for the first"]
    hints.finds = False
    line = Line(hints.arm, most_at_once=16, rest_s=rest_s)
    hints.line = line
    first, second = Waiter(messages), Waiter(messages)
    first.leaves_more = False
    line.join(first, has_tried=True)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await turns()
        hints.change(is_call=True)
        await first.served.wait()
        await turns()
        yield hints, line, first, second
        await serving


def test_a_line_that_was_empty_for_a_moment_goes_on() -> None:
    """Neither armed nor tried again: whoever comes has tried, and since then nothing was heard."""

    async def scene() -> None:
        async with first_served(rest_s=0.2) as (hints, line, first, second):
            line.forget(first)  # as a stream does that has its turn
            await turns()
            line.join(second, has_tried=True)
            await turns()
            assert (hints.is_armed, second.tries) == (False, 0)
            second.messages.append("for the second")
            hints.change(is_call=True)
        assert second.tries == 1

    run(scene)


@pytest.mark.parametrize("finds", [True, False])
async def test_what_was_heard_while_nobody_waited_is_looked_for_by_arming_at_once(*, finds: bool) -> None:
    """It may have come between the try of whoever comes next and its coming."""
    async with first_served(rest_s=60.0) as (hints, line, _, second):
        hints.change(is_call=True)
        hints.finds = finds
        line.join(second, has_tried=True)
        await turns()
        assert (hints.is_armed, second.tries) == (True, 1 if finds else 0)
        line.forget(second)
        line.fail_all(ShuttingDown("a test"))


async def test_an_empty_line_is_served_no_longer_when_all_waiting_is_over() -> None:
    hints = Hints()
    line = Line(hints.arm, most_at_once=16, rest_s=60.0)
    waiter = Waiter([])
    line.join(waiter)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        await turns()
        line.forget(waiter)
        await turns()
        assert not serving.done()
        line.fail_all(ShuttingDown("a test"))
        await serving
