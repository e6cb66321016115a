"""RQ: `enqueue_many` of a batch; workers that run jobs in their own process (SimpleWorker), because the usual one forks
for every job. Results are dropped at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
import rq

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

_marking: list[Tally] = []


def job(body: str, path: str, count: int) -> None:
    """What the worker runs."""
    if not _marking:
        _marking.append(Tally(Path(path), count))
    _marking[0].mark([number_of(body)])


class Client:
    """One connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._queue = rq.Queue(task.queue, connection=redis.Redis.from_url(task.address))

    async def open(self) -> None:
        """Queues come and go by themselves."""

    def _put(self, batches: Iterator[list[bytes]]) -> None:
        for batch in batches:
            self._queue.enqueue_many([self._prepared(one.decode()) for one in batch])

    def _prepared(self, body: str) -> Any:
        return rq.Queue.prepare_data(job, args=(body, self.task.tally, self.task.count), result_ttl=0)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """A thread for each client: RQ has no asyncio."""
        await asyncio.to_thread(self._put, batches)


def work(task: Task, _tally: Tally, begin: Callable[[], None]) -> None:
    """One worker in this process."""
    connection = redis.Redis.from_url(task.address)
    worker = rq.SimpleWorker([rq.Queue(task.queue, connection=connection)], connection=connection)
    begin()
    worker.work(logging_level="ERROR")
