"""Headway by single calls: Put of a batch, and a Get that acknowledges the batch before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from bench.peers.drivers import headway_streams
from bench.peers.tally import Tally, number_of
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SETTLED_ACKED, SETTLED_ALREADY_ACKED

ACKED = (SETTLED_ACKED, SETTLED_ALREADY_ACKED)  # the latter if an answer was lost
TIMEOUT_S = 60.0
WAIT = Duration()
WAIT.FromTimedelta(timedelta(seconds=20))


class Client(headway_streams.Client):
    """One connection."""

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """One call after the other."""
        for batch in batches:
            request = headway_streams.filled(pb.PutRequest(queue=self.task.queue), batch)
            answer = await self.stub.Put(request, timeout=TIMEOUT_S)
            assert not any(result.HasField("error") for result in answer.results), answer

    async def take(self, tally: Tally) -> None:
        """Done with those, next please. Only a call that has nothing to acknowledge waits, so that nothing is held
        back unacknowledged. A call that failed is repeated; what it may have leased lapses, and comes again."""
        held: dict[str, int] = {}
        while True:
            wait = None if held else WAIT
            request = pb.GetRequest(queue=self.task.queue, max_messages=self.task.batch, ack=list(held), wait=wait)
            try:
                answer = await self.stub.Get(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                print(error.details(), file=sys.stderr)
                continue
            tally.mark(held[one.lease] for one in answer.settled if one.settled in ACKED)
            held = {one.lease: number_of(one.message.payload) for one in answer.deliveries}
