"""Works through a queue: by a stream, or by calls where that is asked for or the service serves no streams."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from headway import _work_by_calls, _work_by_stream
from headway._lease import Lease
from headway._runner import Handler
from headway.core.errors import NotImplementedByService

if TYPE_CHECKING:
    from headway._queue import Queue

By = Literal["stream", "calls"]


async def work(
    queue: "Queue", *, concurrency: int, prefetch: int, lease: timedelta | None, consumer: str, by: By
) -> AsyncGenerator[Lease, None]:
    """See `Queue.work`."""
    _check(concurrency, prefetch, by)
    if by == "stream":
        streamed = _work_by_stream.work(
            queue, concurrency=concurrency, prefetch=prefetch, lease=lease, consumer=consumer
        )
        try:
            async with aclosing(streamed) as leases:
                async for each in leases:
                    yield each
        except NotImplementedByService:
            pass  # said before anything is leased
        else:
            return
    async with aclosing(_work_by_calls.work(queue, concurrency=concurrency, lease=lease, consumer=consumer)) as leases:
        async for each in leases:
            yield each


async def run(
    queue: "Queue",
    handler: Handler,
    *,
    concurrency: int,
    prefetch: int,
    lease: timedelta | None,
    consumer: str,
    stop: asyncio.Event | None,
    drain: bool,
    by: By,
) -> None:
    """See `Queue.run`."""
    _check(concurrency, prefetch, by)
    if by == "stream":
        try:
            await _work_by_stream.StreamRunner(
                queue,
                handler,
                concurrency=concurrency,
                prefetch=prefetch,
                lease=lease,
                consumer=consumer,
                stop=stop,
                drain=drain,
            ).run()
        except NotImplementedByService:
            pass
        else:
            return
    await _work_by_calls.CallRunner(
        queue, handler, concurrency=concurrency, lease=lease, consumer=consumer, stop=stop, drain=drain
    ).run()


def _check(concurrency: int, prefetch: int, by: By) -> None:
    if concurrency < 1 or prefetch < 0:
        raise ValueError("concurrency is at least 1, and prefetch at least 0")
    if by not in ("stream", "calls"):
        raise ValueError(f"by is 'stream' or 'calls', not {by!r}")
