"""Tasks that somebody keeps and nobody waits for: they run beside everything else, as long as a part of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def kept(work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """A task of this. If a defect ends it the event loop is told, and it is logged: asyncio by itself would say so only
    when nobody keeps the task any more."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"a defect has ended a task: {task.get_name()}", "exception": error, "task": task}
        )
