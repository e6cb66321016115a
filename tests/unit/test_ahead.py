"""A step begun ahead is on its way before what came of the last one is told, and goes with whoever began it."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.engine.ahead import begun


async def test_three_turns_of_the_loop_are_done_before_it_returns() -> None:
    turns = 0

    async def work() -> str:
        nonlocal turns
        for _ in range(3):
            turns += 1
            await asyncio.sleep(0)
        return "done"

    task = await begun(work(), "work")
    assert turns == 3
    assert not task.done()
    assert await task == "done"


async def test_what_it_raises_is_for_whoever_awaits_it() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await (await begun(work(), "work"))


async def test_it_is_cancelled_with_whoever_begins_it() -> None:
    is_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    beginning = asyncio.ensure_future(begun(work(), "work"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        _ = await beginning
    await asyncio.wait_for(is_cancelled.wait(), 1)
