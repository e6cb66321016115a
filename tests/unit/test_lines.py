"""Lines of waiters: no change is slept through, whenever its hint comes."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.domain.errors import HeadwayError
from headwayd.engine.lines import Line


class Hints:
    """Hints as a store gives them: one for each time that was asked, and none for what nobody asked about."""

    def __init__(self) -> None:
        self.is_armed = False
        self.line: Line | None = None

    async def arm(self) -> None:
        self.is_armed = True

    def change(self) -> None:
        if self.is_armed and self.line is not None:
            self.is_armed = False
            self.line.kick()


class Waiter:
    """Wants one message."""

    rank = 0

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


async def test_a_hint_that_comes_right_after_it_was_asked_for_is_asked_for_again() -> None:
    """The change that it told of was somebody else's gain. The next one must be heard, too."""
    hints, messages = Hints(), list[str]()

    async def arm_and_lose_to_another_process() -> None:
        await hints.arm()
        if waiter.tries == 1:
            hints.change()  # put there, and taken there

    line = Line(arm_and_lose_to_another_process, most_at_once=16, check_s=lambda: 60.0)
    hints.line = line
    waiter = Waiter(messages)
    line.join(waiter)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        for _ in range(20):  # turns of the loop: it tries, arms, tries again, and sleeps
            await asyncio.sleep(0)
        assert waiter.tries >= 2
        messages.append("put by another process")
        hints.change()
        await waiter.served.wait()
        await serving


async def test_a_hint_that_comes_with_the_message_of_the_first_is_asked_for_again_for_the_second() -> None:
    hints, messages = Hints(), list[str]()

    async def arm_and_be_given_one() -> None:
        await hints.arm()
        if not first.served.is_set():
            messages.append("for the first")
            hints.change()

    line = Line(arm_and_be_given_one, most_at_once=16, check_s=lambda: 60.0)
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
    line = Line(hints.arm, most_at_once=16, check_s=lambda: 60.0)
    first, last = Waiter([]), Waiter([])
    line.join(first)
    line.join(last)
    serving = asyncio.create_task(line.serve())
    async with asyncio.timeout(5):
        for waiter in (first, last):
            for _ in range(20):  # turns of the loop: it tries, arms, tries again, and sleeps
                await asyncio.sleep(0)
            assert not serving.done()
            if how == "leave":
                await line.leave(waiter)
            else:
                line.forget(waiter)
        await serving
