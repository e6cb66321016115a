"""Several services, several clients that crash, hang, cancel and answer late: every message is accounted for.

HEADWAY_SOAK_S sets how long each run produces (`make soak`: five minutes each).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from harness import StoreServer, eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_pb2 import Counts, Policy, Retry
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from soak.foreign import ForeignClient
from soak.services import MOST_STORE_CONNECTIONS, Holdings, WatchedService
from soak.traffic import Connect, Producer, Seen, Stub, Worker, ms, verdict
from soak.witness import LeaseLog, Sample, name_in, sample

SECONDS = float(os.environ.get("HEADWAY_SOAK_S", "4"))
SERVICES, PRODUCERS, WORKERS = 3, 4, 6
BOUND, MOST_ATTEMPTS = 40, 2
AT_REST = 3
PREFIX = "__soak__"
QUEUE = "soak"
BASE = f"{PREFIX}:{QUEUE}"
# Long enough that no honest worker is ever late, however busy the machine; short enough to lapse often.
HONEST_LEASE_MS, LEASE_MS = 60_000, 700


@pytest.fixture
def services(fresh_store_server: StoreServer, short_dir: Path) -> Iterator[list[WatchedService]]:
    """Three processes on one store."""
    env = {"HEADWAY_REDIS_URL": fresh_store_server.url, "PRESSURE_PREFIX": PREFIX, "HEADWAY_LOG_LEVEL": "warning"}
    made = []
    for number in range(SERVICES):
        folder = short_dir / f"service{number}"
        folder.mkdir()
        made.append(WatchedService(folder, env=env))
    try:
        for service in made:
            service.start()
        yield made
    finally:
        for service in made:
            service.stop()


def states(counts: Counts) -> int:
    """All messages that were ever accepted, each in the one state it is in."""
    here = counts.length + counts.delayed + counts.leased + counts.dead
    return here + counts.acked + counts.expired + counts.withdrawn + counts.taken_by_foreign


async def counts_of(stub: Stub) -> Counts:
    return (await stub.Describe(pb.DescribeRequest(queue=QUEUE), timeout=5)).queue.counts


async def watch(stub: Stub, raw: redis.Redis, seen: Seen, *, with_foreign: bool) -> None:
    """The books balance at every instant that anybody looks, by the service's account and by the store's."""
    while True:
        counts = await counts_of(stub)
        if states(counts) != counts.accepted:
            seen.unexpected.append(f"the numbers do not add up: {counts}")
        if counts.length > BOUND + WORKERS * 6 + PRODUCERS * 8:  # what comes back or falls due may overfill
            seen.unexpected.append(f"the line has {counts.length} messages")
        found = await asyncio.to_thread(sample, raw, BASE)
        seen.unexpected += found.wrong(with_totals=not with_foreign)
        await asyncio.sleep(0.03)


async def run_traffic(services: Sequence[WatchedService], stubs: Sequence[Stub], connect: Connect, seen: Seen) -> None:
    """Returns when everything that was accepted has come to its end."""
    is_honest = seen.lease_ms == HONEST_LEASE_MS
    async with asyncio.TaskGroup() as group:
        producers = [Producer(stubs[n % SERVICES], QUEUE, f"p{n}", seen, is_honest=is_honest) for n in range(PRODUCERS)]
        producing = [group.create_task(producer.run()) for producer in producers]
        for n in range(WORKERS):
            worker = Worker(services[n % SERVICES].address, connect, QUEUE, seen, is_honest=is_honest or n % 3 == 0)
            group.create_task(worker.run())
        await asyncio.wait(producing, timeout=SECONDS)
        seen.stopped.set()
        await asyncio.wait(producing)
        await eventually(lambda: is_drained(stubs[0]), within=60)
        seen.drained.set()


async def is_drained(stub: Stub) -> bool:
    counts = await counts_of(stub)
    return counts.length == counts.leased == counts.delayed == 0


async def at_rest(service: WatchedService, stub: Stub, store_port: int) -> Holdings:
    """What it holds when nobody calls: no task of a queue (lines, releases, visits, leavings), no call that just
    ends, no caller but this one; and, in so many looks one after the other, nothing that is there for a moment."""

    looks: list[Holdings] = []

    async def without_callers() -> Holdings | None:
        counts = await counts_of(stub)
        assert (counts.consumers_waiting, counts.producers_waiting, counts.leased) == (0, 0, 0)
        found = await asyncio.to_thread(service.holdings, store_port)
        assert found.callers == 1, found
        assert not [name for name in found.tasks if ":" in name or name.startswith("Call.")], found
        looks.append(found)
        return found if looks[-AT_REST:] == [found] * AT_REST else None

    found = await eventually(without_callers, within=20)
    assert found is not None
    return found


def assert_accounted(seen: Seen, counts: Counts, log: LeaseLog, last: Sample, *, had_faults: bool) -> None:
    """Every message came to one end, and clients, service and store say the same."""
    corpses = {name_in(kept).decode() for kept in last.dead}
    assert corpses >= seen.dead
    seen.dead |= corpses
    assert verdict(seen, had_faults=had_faults) == []
    assert len(seen.accepted) > 20 * SECONDS
    assert counts.accepted == len(seen.accepted) == states(counts)
    assert (counts.acked, counts.dead, counts.withdrawn) == (len(seen.acked), len(seen.dead), len(seen.withdrawn))
    assert log.wrong == last.wrong(with_totals=True) == []
    never_leased = seen.accepted - {name.decode() for name in log.lent}
    assert never_leased <= seen.foreign | seen.withdrawn | seen.mortal
    assert log.granted >= sum(seen.delivered.values())
    assert log.out == 0


def figures_of(seen: Seen, counts: Counts, log: LeaseLog) -> str:
    """How much of everything there was: without it, nothing was shown."""
    figures = {"accepted": counts.accepted, "leases": log.granted, "most at once": log.most_out, "acked": counts.acked}
    figures |= {"dead": counts.dead, "of them never heard of": len(seen.dead - set(seen.delivered))}
    figures |= {"expired": counts.expired, "withdrawn": counts.withdrawn, "taken by others": counts.taken_by_foreign}
    return ", ".join(f"{name} {value}" for name, value in (figures | dict(seen.moods)).items() if value)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 150)
@pytest.mark.parametrize("is_honest", [True, False], ids=["without faults", "with crashes, cancels and late acks"])
async def test_every_message_is_accounted_for(
    fresh_store_server: StoreServer,
    services: list[WatchedService],
    connect: Connect,
    is_honest: bool,
    record_property: Callable[[str, object], None],
) -> None:
    random.seed(20)
    port = fresh_store_server.port
    seen = Seen(lease_ms=HONEST_LEASE_MS if is_honest else LEASE_MS)
    async with AsyncExitStack() as stack:
        raw, foreign_raw = (stack.enter_context(fresh_store_server.client(timeout_s=20)) for _ in range(2))
        channels = [await stack.enter_async_context(connect(service.address)) for service in services]
        stubs: list[Stub] = [QueueServiceStub(channel) for channel in channels]
        retry = Retry(max_attempts=0 if is_honest else MOST_ATTEMPTS, min_backoff=ms(20), max_backoff=ms(200))
        await stubs[0].Create(pb.CreateRequest(queue=QUEUE, policy=Policy(bound=BOUND, retry=retry)))
        await counts_of(stubs[1]), await counts_of(stubs[2])  # everybody is connected
        log = LeaseLog(port, BASE)
        before = [await at_rest(service, stub, port) for service, stub in zip(services, stubs, strict=True)]

        foreign, no_more = ForeignClient(foreign_raw, BASE, BOUND), threading.Event()
        watching = asyncio.create_task(watch(stubs[1], raw, seen, with_foreign=not is_honest))
        visiting = asyncio.create_task(asyncio.to_thread(foreign.run, no_more)) if not is_honest else None
        asyncio.get_running_loop().call_later(SECONDS, no_more.set)
        await run_traffic(services, stubs, connect, seen)
        if visiting:
            await visiting
        watching.cancel()
        await asyncio.wait({watching})
        assert watching.cancelled(), watching.exception()
        seen.foreign |= foreign.taken
        seen.accepted |= foreign.put_names

        log.finish(raw)
        counts = await counts_of(stubs[0])
        assert_accounted(seen, counts, log, sample(raw, BASE), had_faults=not is_honest)
        assert counts.taken_by_foreign == len(foreign.taken)
        assert foreign.unexplained(seen.roles_taken) == []

        # Nothing is held any more.
        after = [await at_rest(service, stub, port) for service, stub in zip(services, stubs, strict=True)]
        for service, first, last in zip(services, before, after, strict=True):
            assert (last.tasks, last.other_descriptors) == (first.tasks, first.other_descriptors), (first, last)
            assert last.store_connections <= MOST_STORE_CONNECTIONS
            assert "[error" not in service.log.read_text(), service.log.read_text()
        await stubs[0].Delete(pb.DeleteRequest(queue=QUEUE), timeout=10)
        assert list(raw.scan_iter(f"{PREFIX}*")) == []
        record_property("figure: messages", figures_of(seen, counts, log))
    for service in services:
        assert await asyncio.to_thread(service.stop) == 0
    assert [one for one in raw_clients(fresh_store_server) if one.get("name") == "headwayd"] == []


def raw_clients(server: StoreServer) -> list[dict[str, str]]:
    with server.client() as client:
        return list(client.client_list())
