"""More calls than a process takes: they are refused with when to come again, and everything else goes on."""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.http2_load import Plan, Tally
from faults.conftest import Connect, Open, Serve
from harness import ServiceProcess, StoreServer, eventually, refused
from harness.scraping import scrape
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import ACKED, RESOURCE_EXHAUSTED, UNAVAILABLE, Line, Message, span

TESTS = Path(__file__).resolve().parents[1]
SERVING = health_pb2.HealthCheckResponse.SERVING
MIB = 1024 * 1024
FLOODED, OVER = "flooded: clients are told to connect anew", "the flood is over: clients are told to connect anew"

AnswerT = TypeVar("AnswerT")

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("floods")]  # with the time until it has its turn


async def health(channel: grpc.aio.Channel, name: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)).status)


async def wait(line: Line, count: int) -> bool:
    return (await line.counts()).consumers_waiting == count


async def test_at_the_limit_new_calls_are_told_when_to_come_again_and_the_rest_goes_on(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, connect: Connect
) -> None:
    service = await serve(fresh_store_server.url, HEADWAY_MAX_RUNNING_CALLS="10")
    line = await open_line(service, "jobs")
    beside = await open_line(await serve(fresh_store_server.url), "jobs")
    await line.create()
    await line.put(b"1")
    held = await line.take_one()
    async with connect(service.address) as channel:
        waiting = [asyncio.create_task(line.get(wait_ms=60_000)) for _ in range(10)]
        await eventually(lambda: wait(beside, 10))
        for call in (line.put(b"2"), line.get(), line.describe(), line.get(wait_ms=60_000)):
            with refused("OVERLOADED", RESOURCE_EXHAUSTED) as said:
                await call
            assert said.retry_delay == timedelta(seconds=1)
        assert await line.ack(held.lease) == [ACKED]  # what was begun is ended
        assert [await health(channel, name) for name in ("", "liveness", "readiness")] == [SERVING] * 3
        assert not any(call.done() for call in waiting)
        await beside.put(*(b"%d" % number for number in range(10)))
        await asyncio.gather(*waiting)
        await line.put(b"3")
    assert (await beside.counts()).length == 1  # of what was refused nothing happened


OpenJobs = Callable[..., Awaitable[tuple[ServiceProcess, Line]]]


@pytest.fixture
def only_flood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """None of the others that ask for this runs meanwhile, in no process of this test run: side by side neither flood
    is one, and nothing is left for who would be answered during it."""
    with (tmp_path_factory.getbasetemp().parent / "flood.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def open_jobs(fresh_store_server: StoreServer, serve: Serve, open_line: Open, only_flood: None) -> OpenJobs:
    """A service with these settings, and a line for the load, which is the only one."""

    async def open_(**settings: str) -> tuple[ServiceProcess, Line]:
        service = await serve(fresh_store_server.url, HEADWAY_LOG_LEVEL="info", **settings)
        line = await open_line(service, "jobs")
        await line.create()
        return service, line

    return open_


async def flood(address: str, queue: str, *, rate: float, seconds: float, clients: int = 0) -> Tally:
    """Offers so many unary Puts a second: whatever comes back, or by so many clients who stay away when told to. With
    the rate 0 there are always a hundred on their way."""
    request = pb.PutRequest(queue=queue, messages=[Message(payload=b"x" * 100)])
    plan = Plan(
        port=int(address.rpartition(":")[2]),
        path="/headway.v1.QueueService/Put",
        request=b64encode(request.SerializeToString()).decode(),
        seconds=seconds,
        rate=rate,
        clients=clients,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.http2_load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=TESTS,
    )
    out, _ = await process.communicate(json.dumps(asdict(plan)).encode())
    assert process.returncode == 0
    return Tally(**json.loads(out))


async def once_it_can(ask: Callable[[], Awaitable[AnswerT]], *, within: float = 30) -> AnswerT:
    """The answer, when the service has done with the flood: until then callers may be told to come again. Where gRPC
    has no room even for that, it says CANCELLED (P-ERR-7)."""
    began, said = time.monotonic(), []
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return await ask()
                except grpc.aio.AioRpcError as error:
                    if error.code() not in (RESOURCE_EXHAUSTED, UNAVAILABLE, grpc.StatusCode.CANCELLED):
                        raise
                    said.append(f"{error.code().name} after {time.monotonic() - began:.1f} s")
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"no answer within {within} s: {said}") from None


@pytest.mark.slow
async def test_a_flood_of_calls_loses_nothing_that_was_accepted_and_memory_stays_bounded(
    open_jobs: OpenJobs, connect: Connect, figure: Callable[[str, str], None]
) -> None:
    service, line = await open_jobs()
    before = psutil.Process(service.pid).memory_info().rss
    most = before
    healthy_count, longest = 0, 0.0
    flooding = asyncio.create_task(flood(service.address, "jobs", rate=30_000, seconds=5))
    async with connect(service.address) as channel:
        while not flooding.done():
            asked = time.monotonic()
            # Those that come just when clients are told to connect anew are cancelled (P-LIMIT-3).
            assert await once_it_can(lambda: health(channel, "liveness"), within=20) == SERVING
            longest = max(longest, time.monotonic() - asked)
            healthy_count += not flooding.done()
            most = max(most, psutil.Process(service.pid).memory_info().rss)
    tally = await flooding
    figure("health in a flood of Puts", f"{healthy_count} checks, the longest {longest:.2f} s")
    assert healthy_count > 10
    refused_count = sum(tally.statuses.values())
    done_count = tally.in_time + tally.too_late
    figure("a flood of Puts", f"{tally.offered} offered, {done_count} done, {refused_count} not: {tally.statuses}")
    assert refused_count > 0
    assert tally.statuses.get("8", 0) <= tally.with_details  # whoever is told to come again is told when
    assert most - before < 600 * MIB
    assert done_count <= (await once_it_can(line.counts)).length <= tally.offered
    await once_it_can(lambda: line.put(b"after"))  # it serves as before
    await asyncio.wait_for(once_it_can(line.take_one), 10)


@pytest.mark.slow
async def test_clients_that_are_too_many_are_told_when_to_come_again(
    open_jobs: OpenJobs, figure: Callable[[str, str], None]
) -> None:
    service, line = await open_jobs()
    told_share = 0.0
    for _ in range(3):  # what a machine has left for the load, and how it begins, are not always the same
        tally = await flood(service.address, "jobs", rate=50_000, seconds=5, clients=400)
        told, all_refused = tally.statuses.get("8", 0), sum(tally.statuses.values())
        figure("too many clients", f"{tally.in_time + tally.too_late} done, not: {tally.statuses}")
        assert told + tally.statuses.get("14", 0) == tally.with_details  # on a slow machine the store is late for some
        told_share = max(told_share, told / max(all_refused, 1))
        if told_share >= 0.05:
            break
    assert told_share >= 0.05  # and not only CANCELLED by gRPC, which does not say when
    assert FLOODED not in service.log.read_text()  # who stays away when told to need not be kept out
    await once_it_can(lambda: line.put(b"after"))


@pytest.mark.slow
async def test_over_connections_with_few_streams_a_flood_is_turned_away_before_it_costs_anything(
    open_jobs: OpenJobs, figure: Callable[[str, str], None]
) -> None:
    service, line = await open_jobs(HEADWAY_MAX_STREAMS_PER_CONNECTION="20")
    tally = await flood(service.address, "jobs", rate=30_000, seconds=4)
    figure("few streams", f"{tally.in_time + tally.too_late} done, not: {tally.statuses}")
    assert tally.statuses.keys() <= {"reset", "8"}  # never so many in line that gRPC had to cancel calls
    assert tally.statuses["reset"] > 0
    assert tally.unanswered == 0
    assert (await line.counts()).length == tally.in_time + tally.too_late  # nothing was begun of what was turned away


@pytest.mark.slow
async def test_clients_that_keep_to_the_streams_of_a_connection_are_not_turned_away(open_jobs: OpenJobs) -> None:
    service, _ = await open_jobs(HEADWAY_MAX_STREAMS_PER_CONNECTION="20")
    tally = await flood(service.address, "jobs", rate=10_000, seconds=3, clients=400)
    assert tally.in_time > 1_000
    assert "reset" not in tally.statuses


@pytest.mark.slow
async def test_when_a_flood_is_over_nobody_is_refused(open_jobs: OpenJobs, figure: Callable[[str, str], None]) -> None:
    service, line = await open_jobs(HEADWAY_FLOOD_CALLS="0")
    tally = await flood(service.address, "jobs", rate=40_000, seconds=4)
    assert sum(tally.statuses.values()) > 10_000  # gRPC's own refusals, which its books never end
    await once_it_can(lambda: line.put(b"after"))
    await asyncio.sleep(2)  # what was found last counts for a second
    after = await flood(service.address, "jobs", rate=0, seconds=4)
    figure("after a flood", f"{after.in_time} done, not: {after.statuses}")
    assert after.statuses == {}
    assert FLOODED not in service.log.read_text()


# -- connections that are opened anew ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_flood_that_lasts_is_kept_out_until_it_is_over_and_who_stands_in_line_keeps_the_place(
    open_jobs: OpenJobs, connect: Connect, figure: Callable[[str, str], None]
) -> None:
    service, line = await open_jobs(HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    async with connect(service.address) as channel:
        turns = Line(QueueServiceStub(channel), "turns", line.admin)
        await turns.create()
        stand = pb.Stand(consumer="ada", keep_standing=True, lease=span(60_000))
        standing: Any = turns.stub.WatchPosition(pb.WatchPositionRequest(queue="turns", stand=stand))
        assert (await anext(aiter(standing))).position.position == 1
        flooding = asyncio.create_task(flood(service.address, "jobs", rate=40_000, seconds=20))
        await eventually(lambda: FLOODED in service.log.read_text(), within=15)
        await asyncio.sleep(3)  # all have been told to connect anew
        assert (await scrape(service)).value("flood_kept_out") == 1
        began = (await once_it_can(line.counts)).length  # who comes now may be refused, too, and comes again
        for number in range(20):  # by a client that was there before, as by one that comes now
            await once_it_can(partial(turns.put, b"%d" % number))
            async with connect(service.address) as another:
                assert await once_it_can(partial(health, another), within=5) == SERVING
        tally = await flooding
        done_count = tally.in_time + tally.too_late
        figure("a flood that is kept out", f"{tally.offered} offered, {done_count} done, not: {tally.statuses}")
        assert tally.statuses["reset"] > tally.statuses["1"]  # HTTP/2 took no more, before gRPC made calls of it
        counted = (await once_it_can(line.counts)).length
        assert done_count <= counted <= tally.offered
        assert counted > began
        await eventually(lambda: OVER in service.log.read_text(), within=90)
        assert (await scrape(service)).value("flood_kept_out") == 0
        await asyncio.sleep(3)
        await once_it_can(lambda: turns.put(b"20"))
        granted = 0
        async with asyncio.timeout(20):
            async for told in standing:  # the stream of before, all the time
                for delivery in told.granted.deliveries:
                    granted += 1
                    assert await turns.ack(delivery.lease) == [ACKED]
                if granted == 21:
                    break
        again = await flood(service.address, "jobs", rate=0, seconds=2)
        assert again.statuses == {}


@pytest.mark.slow
async def test_streams_that_come_by_the_thousand_are_no_flood(open_jobs: OpenJobs) -> None:
    service, line = await open_jobs()
    beside = asyncio.create_task(flood(service.address, "jobs", rate=0, seconds=8))
    request = pb.WatchPositionRequest(queue="jobs", messages=pb.MessageIds(ids=["nobody"]))
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(service.address, options=options) for _ in range(4)]
        for channel in channels:
            await stack.enter_async_context(channel)
        watches: list[Any] = [
            QueueServiceStub(channels[n % 4]).WatchPosition(request, timeout=60) for n in range(4 * 1_500)
        ]
        first = await asyncio.gather(*(one.read() for one in watches), return_exceptions=True)
    assert sum(isinstance(one, pb.WatchPositionResponse) for one in first) > 1_000
    await beside
    await once_it_can(line.counts)
    assert FLOODED not in service.log.read_text()
