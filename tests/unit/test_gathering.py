"""What comes together is written together, silence is noticed, and whoever leaves takes everything along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from headwayd.http.gathering import gathered, until_gone

LONG_S = 30.0


class Replies:
    """A stream fed by a test."""

    def __init__(self) -> None:
        self.fed = asyncio.Queue[bytes | Exception | None]()
        self.taken = 0
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            while (fed := await self.fed.get()) is not None:
                self.taken += 1
                if isinstance(fed, Exception):
                    raise fed
                yield fed
        finally:
            self.is_closed = True

    def feed(self, *some: bytes | Exception | None) -> None:
        for each in some:
            self.fed.put_nowait(each)


async def test_the_first_goes_out_at_once_and_what_follows_together() -> None:
    replies = Replies()
    lists = gathered(replies.stream(), every_s=0.2, idle_s=LONG_S, most=100)
    replies.feed(b"1")
    assert await anext(lists) == [b"1"]
    replies.feed(b"2", b"3")
    assert await anext(lists) == [b"2", b"3"]
    replies.feed(b"4", None)
    assert [each async for each in lists] == [[b"4"]]
    assert replies.is_closed


async def test_no_list_is_longer_than_told_and_no_more_is_taken_while_it_is_written() -> None:
    replies = Replies()
    lists = gathered(replies.stream(), every_s=LONG_S, idle_s=LONG_S, most=3)
    replies.feed(*(b"%d" % n for n in range(9)))
    assert await anext(lists) == [b"0", b"1", b"2"]
    assert await anext(lists) == [b"3", b"4", b"5"]
    await asyncio.sleep(0)
    assert replies.taken <= 7
    await lists.aclose()


async def test_silence_is_told_by_an_empty_list() -> None:
    replies = Replies()
    lists = gathered(replies.stream(), every_s=0, idle_s=0.01, most=3)
    assert await anext(lists) == []
    replies.feed(b"1")
    while not (told := await anext(lists)):
        pass
    assert told == [b"1"]
    await lists.aclose()
    assert replies.is_closed


async def test_an_error_comes_behind_what_came_before_it() -> None:
    replies = Replies()
    lists = gathered(replies.stream(), every_s=0.05, idle_s=LONG_S, most=9)
    replies.feed(b"1")
    assert await anext(lists) == [b"1"]
    replies.feed(b"2", ValueError("no more"))
    assert await anext(lists) == [b"2"]
    with pytest.raises(ValueError, match="no more"):
        await anext(lists)
    assert replies.is_closed


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_who_goes_ends_the_work_and_its_clean_up_is_waited_for(*, is_cancelled: bool) -> None:
    gone, begun, is_clean = asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal is_clean
        begun.set()
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await asyncio.sleep(0)
            is_clean = True

    async def leave() -> None:
        await gone.wait()

    working = asyncio.create_task(until_gone(work(), leave()))
    await begun.wait()
    if is_cancelled:
        working.cancel()
    else:
        gone.set()
    async with asyncio.timeout(LONG_S):
        await asyncio.wait({working})
    assert is_clean
    assert working.cancelled() is is_cancelled


async def test_an_error_of_the_work_is_not_lost() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until_gone(work(), asyncio.sleep(LONG_S))
