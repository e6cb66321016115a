"""A step begun ahead is on its way before what came of the last one is told, and goes with whoever began it."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.engine.ahead import begun


async def test_it_has_begun_and_its_turn_of_the_loop_is_over_before_it_returns() -> None:
    seen: list[str] = []
    may_end = asyncio.Event()

    async def work() -> str:
        seen.append("begun")
        asyncio.get_running_loop().call_soon(seen.append, "sent")
        await may_end.wait()
        return "done"

    task = await begun(work(), "work")
    assert seen == ["begun", "sent"]
    may_end.set()
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
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        _ = await beginning
    await asyncio.wait_for(is_cancelled.wait(), 1)
