"""Tasks that somebody keeps and nobody waits for: they run beside everything else, as long as a part of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

_AGAIN_S = 2.5  # what such a task has to clean up takes less: at most one answer of the store


def kept(work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """A task of this. If a defect ends it the event loop is told, and it is logged: asyncio by itself would say so only
    when nobody keeps the task any more."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until they have ended; whoever is cancelled meanwhile passes that on to them.

    One that goes on is cancelled again after a while: `asyncio.wait_for` of Python 3.11, by which redis-py sends, keeps
    a cancellation to itself that comes in the turn of the loop in which it is done.
    """
    left = {task for task in tasks if not task.done()}
    try:
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    except asyncio.CancelledError:
        for task in left:
            task.cancel()
        raise


def _tell(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"a defect has ended a task: {task.get_name()}", "exception": error, "task": task}
        )
