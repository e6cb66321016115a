"""Headway by its Python client, as an application uses it: a producer, which gathers messages into batches, gives them
ids, and puts again what has no answer; and `run`, which calls a handler for each message and keeps its lease alive."""

from __future__ import annotations

from collections.abc import Iterator

import grpc.aio

import headway
from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of
from headway.core import connecting


class Client:
    """One connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        client = headway.connect(task.address)
        self._connection, self._queue = client.connection, client.queue(task.queue)

    async def open(self) -> None:
        """Each client has a connection of its own, as separate processes would: gRPC's channels of one process share
        theirs, unless they are told not to."""
        options = [*connecting._OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        self._connection.channel = grpc.aio.insecure_channel(self.task.address, options=options)
        await self._queue.create()

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """One by one. The batches are as large as those of the others, and as many on their way."""
        async with self._queue.producer(max_batch=self.task.batch, max_in_flight=self.task.ahead) as producer:
            answers = [await producer.put_soon(one) for batch in batches for one in batch]
        for answer in answers:
            answer.result()

    async def take(self, tally: Tally) -> None:
        """A handler for each message, which counts it and returns, as those of the frameworks do: `run` acks it then,
        together with what else is done. One whose ack failed would be delivered, and counted, once more."""

        async def handle(lease: headway.Lease) -> None:
            tally.mark([number_of(lease.payload)])

        at_once = min(self.task.batch, self.task.unconfirmed)
        await self._queue.run(handle, concurrency=at_once, prefetch=self.task.unconfirmed - at_once)
