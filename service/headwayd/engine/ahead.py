"""The next step of a stream, begun before what came of the last one is told: so the store works while that is put
together and sent, and this process while the store works."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headwayd.engine.eager import eager_task

ResultT = TypeVar("ResultT")


async def begun(work: Coroutine[Any, Any, ResultT], name: str) -> asyncio.Task[ResultT]:
    """A task that does it, once that is on its way to the store. What it raises is for whoever awaits it, if anybody
    does."""
    task = eager_task(work, name=name)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.sleep(0)  # short calls are sent at the end of a turn of the loop
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task
