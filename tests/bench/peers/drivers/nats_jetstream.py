"""NATS JetStream by nats-py: a stream in files that is a work queue; some batches published ahead of their
confirmations; a pull consumer that fetches batches and acknowledges each message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

FETCH_S = 1.0
ACKS_PENDING = 100_000


class Client:
    """One connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._nats: Any = None
        self._js: Any = None

    async def open(self) -> None:
        """Makes the stream and its consumer; both are the same each time, so it does not matter who is first."""
        self._nats = await nats.connect(self.task.address)
        self._js = self._nats.jetstream(publish_async_max_pending=self.task.unconfirmed)
        queue = self.task.queue
        stream = StreamConfig(
            name=queue, subjects=[queue], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE
        )
        await self._js.add_stream(stream)
        consumer = ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=ACKS_PENDING)
        await self._js.add_consumer(queue, consumer)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """Each message is confirmed by the stream; the client waits where too many are not."""
        confirmed = [await self._js.publish_async(self.task.queue, one) for batch in batches for one in batch]
        await asyncio.gather(*confirmed)

    async def take(self, tally: Tally) -> None:
        """An ack is not answered, so after a batch the connection is flushed: then the server has read them."""
        subscription = await self._js.pull_subscribe_bind("workers", self.task.queue)
        while True:
            try:
                batch = await subscription.fetch(self.task.batch, timeout=FETCH_S)
            except TimeoutError:  # the library's own, which is one, and at times a bare one
                continue
            for one in batch:
                await one.ack()
            await self._nats.flush()
            tally.mark(number_of(one.data) for one in batch)
