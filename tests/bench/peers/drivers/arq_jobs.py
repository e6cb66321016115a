"""arq: `enqueue_job` of a batch at once, each on a connection of the pool (it has no bulk call); one worker with at
least 100 jobs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import arq
from arq.connections import RedisSettings

from bench.peers.driving import BATCH, Task
from bench.peers.tally import Tally, number_of

POLL_S = 0.01  # its worker looks for jobs so often, in place of twice a second


class Client:
    """One pool of connections."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._pool: Any = None

    async def open(self) -> None:
        """Queues come and go by themselves."""
        self._pool = await arq.create_pool(RedisSettings.from_dsn(self.task.address))

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """The pool opens connections as it needs them."""
        at_once = max(1, self.task.batch // self.task.of)
        for batch in batches:
            for start in range(0, len(batch), at_once):
                share = batch[start : start + at_once]
                await asyncio.gather(
                    *(self._pool.enqueue_job("job", one.decode(), _queue_name=self.task.queue) for one in share)
                )


def work(task: Task, tally: Tally, begin: Callable[[], None]) -> None:
    """One worker in this process."""

    async def job(_context: dict[Any, Any], body: str) -> None:
        tally.mark([number_of(body)])

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = arq.Worker(
        functions=[arq.func(job, name="job", keep_result=0)],
        queue_name=task.queue,
        redis_settings=RedisSettings.from_dsn(task.address),
        max_jobs=max(BATCH, task.clients),
        poll_delay=POLL_S,
        handle_signals=False,
    )
    begin()
    worker.run()
