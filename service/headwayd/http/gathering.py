"""What comes one by one is written together: a write costs more than what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable

from starlette.types import Receive


async def gathered(
    replies: AsyncGenerator[bytes, None], *, every_s: float, idle_s: float, most: int
) -> AsyncGenerator[list[bytes], None]:
    """The replies, some at a time: the first as it comes, then lists no closer together than `every_s` and of at most
    so many; an empty one when none came for `idle_s`. Closed, it closes the replies.

    Nothing is taken while a list is being written, so a reader that is slow delays nobody and has no backlog."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[bytes] = asyncio.ensure_future(_next(replies))
    written_at = loop.time() - every_s
    try:
        while True:
            await asyncio.wait({coming}, timeout=idle_s)
            if not coming.done():
                yield []
                continue
            batch = [coming.result()]
            coming = asyncio.ensure_future(_next(replies))
            while len(batch) < most:
                await asyncio.wait({coming}, timeout=max(written_at + every_s - loop.time(), 0))
                if not coming.done() or coming.exception() is not None:
                    break
                batch.append(coming.result())
                coming = asyncio.ensure_future(_next(replies))
            yield batch
            written_at = loop.time()
    except StopAsyncIteration:
        return
    finally:
        coming.cancel()
        await asyncio.wait({coming})
        if not coming.cancelled():
            coming.exception()  # seen
        await replies.aclose()


async def _next(replies: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(replies)


async def hung_up(receive: Receive) -> None:
    """Until the one who asked has gone. Nothing that it may yet send is looked at."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_gone(work: Awaitable[None], gone: Awaitable[None]) -> None:
    """Does it until the one who asked has gone: then it is cancelled, and has cleaned up when this returns."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
