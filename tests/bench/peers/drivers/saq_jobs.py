"""SAQ: `enqueue` of a batch at once on one connection pool (it has no bulk call); one worker with as many jobs at a
time as there are clients, at least 10, its default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import saq

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

DEFAULT_CONCURRENCY = 10


class Client:
    """One pool of connections."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._queue = saq.Queue.from_url(task.address, name=task.queue)

    async def open(self) -> None:
        """Queues come and go by themselves."""
        await self._queue.connect()

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """The pool opens connections as it needs them."""
        at_once = max(1, self.task.batch // self.task.of)
        for batch in batches:
            for start in range(0, len(batch), at_once):
                share = batch[start : start + at_once]
                await asyncio.gather(*(self._queue.enqueue("job", body=one.decode(), ttl=-1) for one in share))


def work(task: Task, tally: Tally, begin: Callable[[], None]) -> None:
    """One worker in this process."""

    async def job(_context: Any, *, body: str) -> None:
        tally.mark([number_of(body)])

    async def run() -> None:
        queue = saq.Queue.from_url(task.address, name=task.queue)
        concurrency = max(DEFAULT_CONCURRENCY, task.clients)
        worker = saq.Worker(queue, functions=[("job", job)], concurrency=concurrency)
        await asyncio.to_thread(begin)
        await worker.start()

    asyncio.run(run())
