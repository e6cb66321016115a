"""Celery on Redis: `apply_async` one by one over one pooled connection for each client (Celery has no bulk call); late
acks, so that a message is acknowledged when its work is done; threads for several clients, the solo pool for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import celery
from celery import signals

from bench.peers.driving import BATCH, Task
from bench.peers.tally import Tally, number_of


def app_of(task: Task) -> Any:
    """The application, with results off."""
    app = celery.Celery("bench", broker=task.address)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue=task.queue,
        task_acks_late=True,
        worker_prefetch_multiplier=BATCH,
        broker_connection_retry_on_startup=True,
        broker_pool_limit=task.clients,
    )
    return app


class Client:
    """One client of a pool of connections."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._app = app_of(task)

    async def open(self) -> None:
        """Queues come and go by themselves."""

    def _put(self, batches: Iterator[list[bytes]]) -> None:
        with self._app.producer_pool.acquire(block=True) as producer:
            for batch in batches:
                for one in batch:
                    self._app.send_task("job", (one.decode(),), producer=producer)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """A thread for each client: Celery has no asyncio."""
        await asyncio.to_thread(self._put, batches)


def work(task: Task, tally: Tally, begin: Callable[[], None]) -> None:
    """One worker in this process; it cannot be held back once it is made, so making it is part of what is timed."""

    def job(body: str) -> None:
        tally.mark([number_of(body)])

    app = app_of(task)
    app.task(job, name="job")
    begin()
    pool = "solo" if task.clients == 1 else "threads"
    app.Worker(
        pool_cls=pool, concurrency=task.clients, loglevel="ERROR", without_gossip=True, without_mingle=True
    ).start()


signals.setup_logging.connect(lambda **_: None, weak=False)  # no banner, no handlers
