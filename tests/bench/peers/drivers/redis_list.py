"""A plain list of Redis, the floor: LPUSH of a batch, and RPOP with a count (BRPOP while it is empty). What was popped
is gone: there is nothing to acknowledge, and a consumer that crashes loses what it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis.asyncio as redis

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of


class Client:
    """One connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._redis = redis.Redis.from_url(task.address)

    async def open(self) -> None:
        """Lists come and go by themselves."""
        await self._redis.ping()

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """A batch is one command."""
        for batch in batches:
            await self._redis.lpush(self.task.queue, *batch)

    async def take(self, tally: Tally) -> None:
        """Pops as many as there are, up to a batch; waits if there are none."""
        while True:
            found: Any = await self._redis.rpop(self.task.queue, self.task.batch)
            if not found:
                _, first = await self._redis.brpop([self.task.queue]) or ("", "")
                found = [first]
            tally.mark(number_of(one) for one in found)
