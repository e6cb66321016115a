"""Headway by its streams: Produce in batches, without waiting for the answers to earlier ones; Consume with credit for
some batches, each delivery acknowledged as it came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import grpc.aio

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SETTLED_ACKED
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

CREATE_TIMEOUT_S = 10.0

_Request = TypeVar("_Request", pb.ProduceRequest, pb.PutRequest)


def filled(request: _Request, batch: list[bytes]) -> _Request:
    """Adds a message for each. Messages made apart would be copied into the request, at several times the cost."""
    add = request.messages.add
    for one in batch:
        add(payload=one)
    return request


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
        ahead = asyncio.Semaphore(self.task.ahead)

        async def requests() -> AsyncIterator[pb.ProduceRequest]:
            for batch in batches:
                await ahead.acquire()
                yield filled(pb.ProduceRequest(queue=self.task.queue), batch)

        async for answer in self.stub.Produce(requests()):
            assert not any(result.HasField("error") for result in answer.results), answer
            ahead.release()

    async def take(self, tally: Tally) -> None:
        """On one stream. Answers to acks come in the order asked, which is that of the deliveries; a message counts
        when its ack is answered."""
        call = self.stub.Consume()
        credit, batch = pb.Credit(messages=self.task.unconfirmed), self.task.batch
        await call.write(pb.ConsumeRequest(start=pb.ConsumeStart(queue=self.task.queue, credit=credit)))
        asked: deque[tuple[str, int]] = deque()
        while (answer := await call.read()) is not grpc.aio.EOF:
            settled = [(one, asked.popleft()) for one in answer.settled]
            assert all(one.lease == lease for one, (lease, _) in settled), "results in another order than asked"
            tally.mark(number for one, (_, number) in settled if one.settled == SETTLED_ACKED)
            held = [(one.lease, number_of(one.message.payload)) for one in answer.deliveries]
            asked.extend(held)
            for start in range(0, len(held), batch):  # each batch makes room for the next, which comes meanwhile
                ack = pb.AckRequest(leases=[lease for lease, _ in held[start : start + batch]])
                await call.write(pb.ConsumeRequest(ack=ack))
