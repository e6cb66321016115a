"""Due times that only another process knew of: announced, so that any process does the work, asked or not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest
import redis
from google.protobuf.duration_pb2 import Duration

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

SOON = Duration()
SOON.FromTimedelta(timedelta(milliseconds=1_500))


# That a process is gone is noticed, too, and then everything is looked at; one that hangs is not missed.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
async def test_what_another_process_left_is_done_in_time_by_one_that_was_never_asked_for_the_queue(  # noqa: PLR0917
    service: ServiceProcess,
    store_server: StoreServer,
    prefix: str,
    queue_name: str,
    redis_client: redis.Redis,
    make_service: Callable[..., ServiceProcess],
    number: signal.Signals,
) -> None:
    """`service` lives and gets no call at all; it would list the queues only after minutes."""
    doomed = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
    async with grpc.aio.insecure_channel(doomed.address) as channel:
        stub = QueueServiceStub(channel)
        await stub.Create(pb.CreateRequest(queue=queue_name))
        messages = [message_pb2.Message(payload=b"leased"), message_pb2.Message(payload=b"delayed", delay=SOON)]
        await stub.Put(pb.PutRequest(queue=queue_name, messages=messages))
        assert len((await stub.Get(pb.GetRequest(queue=queue_name, lease=SOON))).deliveries) == 1
        line = f"{prefix}:{queue_name}"
        assert redis_client.llen(line) == 0
        doomed.signal(number)
    await eventually(lambda: redis_client.llen(line) == 2, within=5)
    assert redis_client.lrange(line, 0, -1) == [b"delayed", b"leased"]
    await asyncio.to_thread(doomed.kill)
