"""RabbitMQ by aio-pika: persistent messages with confirms, some batches published ahead of them; consumers with
a prefetch of some batches that acknowledge a batch with one `multiple` ack. `options["queue_type"]` is 'classic' or
'quorum'."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aio_pika

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

LINGER_S = 0.01  # an ack waits so long for others


class Client:
    """One connection with one channel."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._channel: Any = None
        self._queue: Any = None

    async def open(self) -> None:
        """Declares the queue."""
        connection = await aio_pika.connect(self.task.address)
        self._channel = await connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=self.task.unconfirmed)
        arguments = {"x-queue-type": self.task.options["queue_type"]}
        self._queue = await self._channel.declare_queue(self.task.queue, durable=True, arguments=arguments)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """The default exchange leads to the queue of the routing key."""
        exchange = self._channel.default_exchange
        mode = aio_pika.DeliveryMode.PERSISTENT
        ahead: deque[asyncio.Future[Any]] = deque()
        for batch in batches:
            messages = [aio_pika.Message(one, delivery_mode=mode) for one in batch]
            ahead.append(asyncio.gather(*(exchange.publish(one, routing_key=self.task.queue) for one in messages)))
            if len(ahead) == self.task.ahead:
                await ahead.popleft()
        await asyncio.gather(*ahead)

    async def take(self, tally: Tally) -> None:
        """An ack is not answered: what counts is that it was sent."""
        waiting: asyncio.Queue[Any] = asyncio.Queue()
        await self._queue.consume(waiting.put)
        while True:
            batch = [await waiting.get()]
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):  # of the batch: one for each message costs more than the message
                    while len(batch) < self.task.batch:
                        batch.append(await waiting.get())
            await batch[-1].ack(multiple=True)
            tally.mark(number_of(one.body) for one in batch)
