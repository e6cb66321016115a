"""What is kept and ended by a defect is told, though nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from headwayd.domain import kept as kept_tasks
from headwayd.domain.kept import end, kept


@pytest.fixture
async def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the event loop was told of."""
    contexts: list[dict[str, Any]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", contexts.append)
    return contexts


async def test_a_defect_that_ends_a_kept_task_is_told_at_once(told: list[dict[str, Any]]) -> None:
    defect = RuntimeError("a defect")

    async def look() -> None:
        raise defect

    task = kept(look(), "look")
    await asyncio.wait({task})
    assert [(context["exception"], context["task"]) for context in told] == [(defect, task)]
    assert told[0]["message"].endswith(": look")


async def test_the_end_of_one_that_returns_or_is_cancelled_is_not(told: list[dict[str, Any]]) -> None:
    never = asyncio.Event()

    async def one() -> int:
        return 1

    ended, stopped = kept(one(), "ended"), kept(never.wait(), "stopped")
    stopped.cancel()
    await asyncio.wait({ended, stopped})
    assert (ended.result(), stopped.cancelled(), told) == (1, True, [])


async def test_one_that_forgets_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tasks, "_AGAIN_S", 0.01)

    async def forget() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    tasks = [kept(forget(), "forgets"), kept(asyncio.Event().wait(), "ends")]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end(tasks)
    assert [task.cancelled() for task in tasks] == [True, True]
