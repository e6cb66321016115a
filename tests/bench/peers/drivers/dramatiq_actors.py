"""Dramatiq on Redis: `enqueue` one by one (it has no bulk call); one worker with a thread for each client,
which fetches 100 messages ahead."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers.driving import BATCH, Task
from bench.peers.tally import Tally, number_of

# Read when it is imported, and spelled so; by itself it is two for each thread.
os.environ["dramatiq_queue_prefetch"] = str(BATCH)  # noqa: SIM112 - see above

import dramatiq
from dramatiq.brokers.redis import RedisBroker


def actor_on(task: Task, function: Callable[[str], None]) -> Any:
    """The job, on a broker of this process."""
    broker = RedisBroker(url=task.address)
    dramatiq.set_broker(broker)
    return dramatiq.actor(function, actor_name="job", queue_name=task.queue, broker=broker)


class Client:
    """One client; Redis connections are pooled by the broker."""

    def __init__(self, task: Task) -> None:
        self._actor = actor_on(task, lambda _body: None)

    async def open(self) -> None:
        """Queues come and go by themselves."""

    def _put(self, batches: Iterator[list[bytes]]) -> None:
        for batch in batches:
            for one in batch:
                self._actor.send(one.decode())

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """A thread for each client: Dramatiq has no asyncio for putting."""
        await asyncio.to_thread(self._put, batches)


def work(task: Task, tally: Tally, begin: Callable[[], None]) -> None:
    """One worker in this process."""
    actor = actor_on(task, lambda body: tally.mark([number_of(body)]))
    worker = dramatiq.Worker(actor.broker, worker_threads=task.clients, queues={task.queue})
    begin()
    worker.start()
    threading.Event().wait()
