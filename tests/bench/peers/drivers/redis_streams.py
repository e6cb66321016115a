"""A stream of Redis with one consumer group, by plain commands: XADD of a batch in one pipeline; XREADGROUP of a batch,
then XACK and XDEL of all of it in one pipeline. What a consumer had that crashed is its own until somebody claims it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import redis.asyncio as redis
from redis.exceptions import ResponseError

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

GROUP = "workers"
FIELD = b"m"


class Client:
    """One connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._redis: Any = redis.Redis.from_url(task.address)  # of a pipeline's commands nothing is to be awaited

    async def open(self) -> None:
        """Makes the stream and its group, unless they are there."""
        try:
            await self._redis.xgroup_create(self.task.queue, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """A batch is one pipeline."""
        for batch in batches:
            async with self._redis.pipeline(transaction=False) as pipe:
                for one in batch:
                    pipe.xadd(self.task.queue, {FIELD: one})
                await pipe.execute()

    async def take(self, tally: Tally) -> None:
        """Reads as many as there are, up to a batch; waits if there are none."""
        name, queue = uuid.uuid4().hex, self.task.queue
        while True:
            found = await self._redis.xreadgroup(GROUP, name, {queue: ">"}, count=self.task.batch, block=0)
            [(_, entries)] = found
            ids = [one for one, _ in entries]
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.xack(queue, GROUP, *ids)
                pipe.xdel(queue, *ids)
                await pipe.execute()
            tally.mark(number_of(fields[FIELD]) for _, fields in entries)
