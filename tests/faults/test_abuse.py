"""Clients that abuse the service: others are served meanwhile, memory stays bounded, and time ends what time can end.

How much slower others are served is measured by `make bench-abuse`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import psutil
import pytest

from bench.abuse import Abusing
from bench.abusers import Plan, Tally
from faults.conftest import Open, Serve
from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import queue_service_pb2 as pb
from wire.calls import ACKED, Line

pytestmark = pytest.mark.any_store

MIB = 1024 * 1024
PUT, CONSUME = "/headway.v1.QueueService/Put", "/headway.v1.QueueService/Consume"
# Others' calls while it lasts.
ROUNDS = 50
SETTINGS = {"HEADWAY_HANDSHAKE_TIMEOUT": "2s", "HEADWAY_WRITE_TIMEOUT": "2s", "HEADWAY_MAX_CONNECTION_IDLE": "3s"}

Abuse = Callable[..., Awaitable[Abusing]]


@pytest.fixture
async def service(request: pytest.FixtureRequest, fresh_store_server: StoreServer, serve: Serve) -> ServiceProcess:
    """With short times, but for those that the test gives."""
    return await serve(fresh_store_server.url, **SETTINGS | getattr(request, "param", {}))


@pytest.fixture
async def jobs(service: ServiceProcess, open_line: Open) -> Line:
    """Others' queue."""
    line = await open_line(service, "jobs")
    await line.create()
    return line


@pytest.fixture
async def abuse(service: ServiceProcess) -> AsyncIterator[Abuse]:
    """Begins it; whoever is still at it afterwards is ended."""
    begun: list[Abusing] = []

    async def begin(kind: str, connections: int, *, path: str = PUT, request: bytes = b"", streams: int = 0) -> Abusing:
        port = int(service.address.rpartition(":")[2])
        plan = Plan(port, kind, connections, path, b64encode(request).decode(), streams)
        begun.append(await Abusing.begin(plan))
        return begun[-1]

    yield begin
    for one in begun:
        await one.end()


async def others_are_served(line: Line) -> None:
    """Put, Get and Ack, over and over; each has a deadline."""
    for n in range(ROUNDS):
        await line.put(b"%d" % n)
        taken = await line.take_one()
        assert taken.message.payload == b"%d" % n
        assert await line.ack(taken.lease) == [ACKED]


def memory(service: ServiceProcess) -> float:
    """What the service has, in MiB."""
    return float(psutil.Process(service.pid).memory_info().rss / MIB)


def callers(service: ServiceProcess) -> int:
    """Connections of clients that the service has."""
    port = int(service.address.rpartition(":")[2])
    there = psutil.Process(service.pid).net_connections("tcp")
    return sum(one.laddr[1] == port and one.status == psutil.CONN_ESTABLISHED for one in there)


# They are to be there all at once, though a busy machine takes seconds to open them; none speaks until all are.
@pytest.mark.long
@pytest.mark.parametrize(
    "service",
    [{"HEADWAY_MAX_CONNECTION_IDLE": "20s", "HEADWAY_HANDSHAKE_TIMEOUT": "60s"}],
    ids=["20s"],
    indirect=True,
)
async def test_idle_connections_cost_others_nothing_and_are_closed_in_time(
    service: ServiceProcess, jobs: Line, abuse: Abuse
) -> None:
    before = memory(service)
    abusing = await abuse("idle", 1_000)
    assert callers(service) > 1_000
    await others_are_served(jobs)
    assert memory(service) - before < 200

    async def are_gone() -> bool:
        return callers(service) == 0  # that of the others, too, who call no more

    await eventually(are_gone, within=60)
    tally = await abusing.end()
    assert (tally.opened, tally.closed_by_service) == (1_000, 1_000)


async def test_streams_that_never_read_hold_little_and_give_back_what_they_leased(
    service: ServiceProcess, jobs: Line, open_line: Open, abuse: Abuse
) -> None:
    spoil = await open_line(service, "spoil")
    await spoil.create()
    for _ in range(20):
        await spoil.put(*[b"x" * 16 * 1024] * 25)
    before = memory(service)
    start = pb.ConsumeStart(queue="spoil", credit=pb.Credit(messages=100))
    await abuse("unread", 4, path=CONSUME, request=pb.ConsumeRequest(start=start).SerializeToString(), streams=100)

    async def are_leased() -> bool:
        return (await spoil.counts()).leased > 0

    async def are_back() -> bool:
        return (await spoil.counts()).leased == 0

    await eventually(are_leased)
    await others_are_served(jobs)
    assert memory(service) - before < 300
    await eventually(are_back, within=20)
    assert (await spoil.take_one()).attempt == 1


async def test_rapid_resets_leave_others_served_and_memory_bounded(
    service: ServiceProcess, jobs: Line, abuse: Abuse
) -> None:
    before = memory(service)
    abusing = await abuse("resets", 2)

    async def a_put_is_served() -> bool:
        try:
            await jobs.put(b"x")
        except grpc.aio.AioRpcError as error:
            # gRPC's line was full: whoever is told so makes the call again (P-ERR-7).
            assert error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return False
        return True

    for _ in range(10):
        await eventually(a_put_is_served, within=20)
        await asyncio.sleep(0.2)  # Puts that are served at once do not end it before it has begun in earnest
    assert memory(service) - before < 600
    tally: Tally = await abusing.end()
    assert tally.resets > 1_000


async def test_a_byte_a_second_does_not_begin_a_connection(service: ServiceProcess, jobs: Line, abuse: Abuse) -> None:
    await abuse("trickle", 300)
    await others_are_served(jobs)

    async def the_slow_to_begin_are_gone() -> bool:
        return callers(service) <= 202  # a third never spoke HTTP/2

    await eventually(the_slow_to_begin_are_gone, within=20)
