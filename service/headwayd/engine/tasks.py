"""The background tasks of one engine: all owned, none forgotten, all ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

Spawn = Callable[[Awaitable[None], str], None]  # `Tasks.spawn`, for those who only begin tasks


class Tasks:
    """Starts tasks and ends them. A task that fails is logged: it must not fail silently."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Awaitable[None], name: str) -> None:
        """Runs `work` until it ends or `close`."""
        task = asyncio.ensure_future(work)
        if isinstance(task, asyncio.Task):
            task.set_name(name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.failed", task=task.get_name(), exc_info=error)

    async def drain(self, timeout_s: float) -> None:
        """Waits for the tasks that end by themselves, and for those that they start, at most so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self._tasks and (left_s := until - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s)

    async def close(self) -> None:
        """Cancels what is left and waits for its end."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
