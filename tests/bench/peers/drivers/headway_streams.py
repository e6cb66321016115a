"""Headway by its streams: Produce in batches, without waiting for the answers to earlier ones; Consume with credit for
some batches, each delivery acknowledged as it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio

from bench.peers.driving import AHEAD, BATCH, Task
from bench.peers.tally import Tally, number_of
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SETTLED_ACKED, Message
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

CREDIT_BATCHES = 10
CREATE_TIMEOUT_S = 10.0


class Client:
    """One connection and its stub."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stub: Any = None

    async def open(self) -> None:
        """Each client has a connection of its own, as separate processes would."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(self.task.address, options=options)
        await channel.channel_ready()
        self.stub = QueueServiceStub(channel)
        await self.stub.Create(pb.CreateRequest(queue=self.task.queue), timeout=CREATE_TIMEOUT_S)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """On one stream."""
        ahead = asyncio.Semaphore(AHEAD)

        async def requests() -> AsyncIterator[pb.ProduceRequest]:
            for batch in batches:
                await ahead.acquire()
                yield pb.ProduceRequest(queue=self.task.queue, messages=[Message(payload=one) for one in batch])

        async for answer in self.stub.Produce(requests()):
            assert not any(result.HasField("error") for result in answer.results), answer
            ahead.release()

    async def take(self, tally: Tally) -> None:
        """On one stream. An answer to an ack names leases; a message counts when its lease is acknowledged."""
        call = self.stub.Consume()
        credit = pb.Credit(messages=CREDIT_BATCHES * BATCH)
        await call.write(pb.ConsumeRequest(start=pb.ConsumeStart(queue=self.task.queue, credit=credit)))
        held: dict[str, int] = {}
        while (answer := await call.read()) is not grpc.aio.EOF:
            tally.mark(held.pop(one.lease) for one in answer.settled if one.settled == SETTLED_ACKED)
            leases = [one.lease for one in answer.deliveries]
            held.update((one.lease, number_of(one.message.payload)) for one in answer.deliveries)
            for start in range(0, len(leases), BATCH):  # each batch makes room for the next, which comes meanwhile
                ack = pb.AckRequest(leases=leases[start : start + BATCH])
                await call.write(pb.ConsumeRequest(ack=ack))
