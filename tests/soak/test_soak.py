"""Several services, several clients that crash, hang, cancel and answer late: every message is accounted for.

HEADWAY_SOAK_S sets how long each run produces (`make soak`: ten minutes).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import grpc
import psutil
import pytest
import redis

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_pb2 import Policy
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from soak.traffic import Seen, Stub, ms, produce, verdict, work

SECONDS = float(os.environ.get("HEADWAY_SOAK_S", "6"))
SERVICES, PRODUCERS, WORKERS = 3, 4, 6
PREFIX = "__soak__"
QUEUE = "soak"


async def _run(stubs: list[Stub], seen: Seen, *, is_honest: bool) -> None:
    async with asyncio.TaskGroup() as group:
        producers = [
            group.create_task(produce(stubs[n % len(stubs)], QUEUE, f"p{n}", seen, pause_s=0.01))
            for n in range(PRODUCERS)
        ]
        for n in range(WORKERS):
            group.create_task(work(stubs[n % len(stubs)], QUEUE, seen, is_honest=is_honest or n % 2 == 0))
        await asyncio.wait(producers, timeout=SECONDS)
        seen.stopped.set()


def _counts_add_up(counts: object) -> bool:
    names = ("length", "leased", "delayed", "dead", "acked", "expired", "withdrawn", "taken_by_foreign")
    return bool(sum(getattr(counts, name) for name in names) == getattr(counts, "accepted"))  # noqa: B009


async def _sample(stub: Stub, seen: Seen) -> None:
    """The numbers add up at every instant that anybody looks."""
    while True:
        counts = (await stub.Describe(pb.DescribeRequest(queue=QUEUE), timeout=5)).queue.counts
        if not _counts_add_up(counts):
            seen.unexpected.append(f"the numbers do not add up: {counts}")
        if counts.length > 40 + WORKERS * 6:  # what comes back or falls due may overfill
            seen.unexpected.append(f"the line has {counts.length} messages")
        await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("is_honest", [True, False], ids=["without faults", "with crashes, cancels and late acks"])
async def test_every_message_is_accounted_for(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], is_honest: bool
) -> None:
    random.seed(20)
    services = [
        make_service(HEADWAY_REDIS_URL=fresh_store_server.url, PRESSURE_PREFIX=PREFIX, HEADWAY_LOG_LEVEL="warning")
        for _ in range(SERVICES)
    ]
    seen = Seen()
    with fresh_store_server.client() as raw:
        async with AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(grpc.aio.insecure_channel(s.address)) for s in services]
            stubs: list[Stub] = [QueueServiceStub(channel) for channel in channels]
            await stubs[0].Create(pb.CreateRequest(queue=QUEUE, policy=Policy(bound=40, lease=ms(700))))
            sampler = asyncio.ensure_future(_sample(stubs[1], seen))
            await _run(stubs, seen, is_honest=is_honest)
            sampler.cancel()
            queue = (await stubs[0].Describe(pb.DescribeRequest(queue=QUEUE))).queue
            assert verdict(seen, had_faults=not is_honest) == []
            assert len(seen.accepted) > 100
            assert queue.counts.accepted == len(seen.accepted) == queue.counts.acked
            await eventually(lambda: _nothing_is_left(raw), within=10)
        for service in services:
            assert psutil.Process(service.pid).num_fds() < 100
            assert service.stop() == 0
        assert list(raw.scan_iter(f"{PREFIX}:{QUEUE}:x:lease*")) == []


def _nothing_is_left(raw: redis.Redis) -> bool:
    base = f"{PREFIX}:{QUEUE}:x:"
    kinds = ("leases", "lease", "body", "side", "returned", "delayed", "later", "producers")
    return not any(raw.exists(base + kind) for kind in kinds)
