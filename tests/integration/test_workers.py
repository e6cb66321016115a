"""Several workers behind one address: each is a service of its own, all are one; nothing is lost when any of them dies.

Whatever else holds between services on one store (tests/wire/test_two_processes.py, tests/faults) holds between them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import psutil
import pytest

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import admin_service_pb2, admin_service_pb2_grpc, queue_service_pb2_grpc
from wire.calls import UNAVAILABLE, Line, payloads, span
from wire.streams import Standing

MakeService = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]
LONG_MS = 3_600_000
WORKERS = ("--workers", "2")
SEEN_S = 20.0  # a worker starts within seconds, also on a busy machine

pytestmark = [
    pytest.mark.any_store,
    pytest.mark.true_start,
    pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="no SO_REUSEPORT on this system"),
]


def workers_of(service: ServiceProcess) -> set[int]:
    """The processes that serve, without the store and what runs them."""
    return {one.pid for one in psutil.Process(service.pid).children() if "headwayd.worker" in command_of(one)}


def command_of(process: psutil.Process) -> list[str]:
    """Nothing if it has just ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def all_of(service: ServiceProcess) -> list[psutil.Process]:
    """Every process of the service."""
    one = psutil.Process(service.pid)
    return [one, *one.children(recursive=True)]


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Lines:
    """One queue, seen through workers: each line has a connection of its own, and knows whose it is."""

    def __init__(self, service: ServiceProcess, connect: Connect, stack: AsyncExitStack) -> None:
        self.service = service
        self._connect = connect
        self._stack = stack

    async def open(self, name: str) -> tuple[int, Line, admin_service_pb2.GetServerInfoResponse]:
        """A line through whichever worker the kernel chooses: its process id, the line, and what it told of itself. A
        worker that dies just now cannot tell, and the channel finds another."""
        channel = await self._stack.enter_async_context(self._connect(self.service.address))
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        told: admin_service_pb2.GetServerInfoResponse | None = None
        async with asyncio.timeout(SEEN_S):
            while told is None:
                try:
                    told = await admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), wait_for_ready=True)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is UNAVAILABLE, error
        pid = int(told.process.split("/")[2])
        return pid, Line(queue_service_pb2_grpc.QueueServiceStub(channel), name, admin), told

    async def through_each(self, name: str) -> dict[int, Line]:
        """One line through each worker."""
        found: dict[int, Line] = {}
        wanted = workers_of(self.service)
        async with asyncio.timeout(SEEN_S):
            while found.keys() != wanted:
                pid, line, _ = await self.open(name)
                found.setdefault(pid, line)
        return found


@pytest.fixture
async def lines(connect: Connect) -> AsyncIterator[Callable[[ServiceProcess], Lines]]:
    async with AsyncExitStack() as stack:
        yield lambda service: Lines(service, connect, stack)


@pytest.fixture
def two(make_service: MakeService, fresh_store_server: StoreServer) -> ServiceProcess:
    """Two workers on a store of this test's own."""
    return make_service(HEADWAY_REDIS_URL=fresh_store_server.url, flags=WORKERS)


async def test_workers_share_the_address_and_one_queue(
    two: ServiceProcess, lines: Callable[[ServiceProcess], Lines]
) -> None:
    assert len(workers_of(two)) == 2
    one, other = (await lines(two).through_each("jobs")).values()
    await one.create()
    waiting = asyncio.create_task(other.get(wait_ms=30_000))
    await one.put(b"1")
    assert payloads((await waiting).deliveries) == [b"1"]


async def test_each_worker_tells_of_itself_and_of_the_store_that_all_use(
    make_service: MakeService, lines: Callable[[ServiceProcess], Lines]
) -> None:
    service = make_service(flags=WORKERS)
    assert service.store.startswith("embedded valkey")
    told: dict[int, admin_service_pb2.GetServerInfoResponse] = {}
    while len(told) < 2:
        pid, _, answer = await lines(service).open("jobs")
        told[pid] = answer
    assert told.keys() == workers_of(service)
    assert {(one.store.embedded, one.store.durability) for one in told.values()} == {(True, "everysec")}
    assert len({one.process for one in told.values()}) == 2


async def test_a_killed_worker_gives_up_its_places_and_leases_and_another_takes_its_place(
    two: ServiceProcess, lines: Callable[[ServiceProcess], Lines]
) -> None:
    (doomed, lost), (living, line) = (await lines(two).through_each("jobs")).items()
    await line.create(lease=span(LONG_MS))
    await line.put(*(b"%d" % number for number in range(20)))
    holder = Standing(lost, max_messages=20)
    assert len(await holder.granted()) == 20
    waiter = Standing(lost)
    await waiter.position(1)
    async with Standing(line, max_messages=20) as behind:
        await behind.position(2)
        os.kill(doomed, signal.SIGKILL)
        # Behind a waiter who is gone: all that the dead one's stream held, at no attempt's cost.
        again = await behind.granted()
        assert [(one.message.payload, one.attempt) for one in again] == [(b"%d" % n, 1) for n in range(20)]
    for one in (holder, waiter):
        assert await one.ended() is UNAVAILABLE
    await eventually(lambda: len(workers_of(two) - {doomed}) == 2, within=SEEN_S)
    assert living in workers_of(two)
    await lines(two).through_each("jobs")  # the new one serves, too
    assert (await line.counts()).length == 20  # the stream that got them has ended


@pytest.mark.slow
async def test_no_accepted_message_is_lost_when_workers_die_while_many_put(
    two: ServiceProcess, lines: Callable[[ServiceProcess], Lines]
) -> None:
    opened = lines(two)
    _, line, _ = await opened.open("jobs")
    first = workers_of(two)
    await line.create()
    accepted: set[bytes] = set()
    enough = asyncio.Event()

    async def put(number: int) -> None:
        _, through, _ = await opened.open("jobs")
        count = 0
        while not enough.is_set():
            payload = b"%d-%d" % (number, count := count + 1)
            try:
                await through.put(payload)
            except grpc.aio.AioRpcError as error:
                assert error.code() is UNAVAILABLE, error
                await asyncio.sleep(0.05)  # until the channel has found another worker
            else:
                accepted.add(payload)

    async def more_than(count: int) -> None:
        await eventually(lambda: len(accepted) > count, within=SEEN_S)

    async def are_two_beside(gone: int) -> None:
        await eventually(lambda: len(workers_of(two) - {gone}) == 2, within=SEEN_S)

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(put(number))
        for victim in first:
            await more_than(len(accepted) + 50)
            os.kill(victim, signal.SIGKILL)
            await are_two_beside(victim)
        await more_than(len(accepted) + 50)
        enough.set()
    assert workers_of(two).isdisjoint(first)
    _, line, _ = await opened.open("jobs")
    got: list[bytes] = []
    while deliveries := (await line.get(1_000)).deliveries:
        got += payloads(deliveries)
    assert accepted <= set(got)
    assert len(got) == len(set(got))


@pytest.mark.slow
async def test_the_embedded_store_outlives_a_worker(
    make_service: MakeService, lines: Callable[[ServiceProcess], Lines]
) -> None:
    service = make_service(flags=WORKERS)
    (doomed, lost), (_, line) = (await lines(service).through_each("jobs")).items()
    [store] = [one for one in psutil.Process(service.pid).children() if "valkey" in one.name()]
    await lost.create()
    await lost.put(b"1")
    os.kill(doomed, signal.SIGKILL)
    await eventually(lambda: len(workers_of(service) - {doomed}) == 2, within=SEEN_S)
    assert not is_gone(store)
    assert payloads(await line.take()) == [b"1"]


async def test_a_worker_told_to_stop_drains_and_its_streams_come_back_to_their_places(
    two: ServiceProcess, lines: Callable[[ServiceProcess], Lines]
) -> None:
    (leaving, there), (_, line) = (await lines(two).through_each("jobs")).items()
    await line.create(place_grace=span(60_000))
    first = Standing(there)
    place = (await first.position(1)).place
    async with Standing(line) as second:
        await second.position(2)
        os.kill(leaving, signal.SIGTERM)
        assert await first.ended() is UNAVAILABLE
        async with Standing(line, place=place) as back:
            await back.position(1)
            await line.put(b"1")
            await back.granted()
        await second.granted()  # what the other let go of
    await eventually(lambda: len(workers_of(two) - {leaving}) == 2, within=SEEN_S)


async def test_sigterm_drains_every_worker_and_leaves_no_process(
    make_service: MakeService, lines: Callable[[ServiceProcess], Lines]
) -> None:
    service = make_service(flags=WORKERS)
    one, other = (await lines(service).through_each("jobs")).values()
    await one.create()
    streams = [Standing(one), Standing(other)]
    for stream in streams:
        await stream.until(lambda _: True)
    everybody = all_of(service)
    service.signal(signal.SIGTERM)
    for stream in streams:
        assert await stream.ended() is UNAVAILABLE
        assert "going down" in (await stream.call.details() or "")
    assert await asyncio.to_thread(service.wait) == 0
    assert [process for process in everybody if not is_gone(process)] == []


@pytest.mark.slow
async def test_a_second_signal_ends_the_drain_delay_of_every_worker(make_service: MakeService) -> None:
    service = make_service(flags=WORKERS, HEADWAY_DRAIN_DELAY="60s")
    service.signal(signal.SIGINT)
    await eventually(lambda: service.log.read_text().count("told to stop") == 3)  # the supervisor and two workers
    service.signal(signal.SIGINT)
    assert await asyncio.to_thread(service.wait) == 0


@pytest.mark.parametrize("has_store", [True, False], ids=["own-store", "named-store"])
async def test_no_process_outlives_a_killed_supervisor(
    make_service: MakeService, fresh_store_server: StoreServer, has_store: bool
) -> None:
    env = {} if has_store else {"HEADWAY_REDIS_URL": fresh_store_server.url}
    service = make_service(flags=WORKERS, **env)
    everybody = all_of(service)
    assert len(everybody) == 3 + has_store
    service.kill()
    await eventually(lambda: all(map(is_gone, everybody)), within=SEEN_S)


@pytest.mark.slow
async def test_what_streams_held_comes_back_at_once_from_the_workers_of_a_killed_supervisor(
    make_service: MakeService, fresh_store_server: StoreServer, lines: Callable[[ServiceProcess], Lines]
) -> None:
    doomed = make_service(flags=WORKERS, HEADWAY_REDIS_URL=fresh_store_server.url)
    _, lost, _ = await lines(doomed).open("jobs")
    stays = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    _, line, _ = await lines(stays).open("jobs")
    await line.create(lease=span(LONG_MS))
    await line.put(b"1")
    await Standing(lost).granted()
    async with Standing(line) as behind:
        doomed.kill()
        [again] = await behind.granted()
        assert again.attempt == 1


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), WORKERS], ids=["one", "two"])
async def test_an_address_that_workers_share_is_taken_for_everyone_else(
    two: ServiceProcess, make_service: MakeService, flags: tuple[str, ...]
) -> None:
    second = make_service(start=False, flags=flags, HEADWAY_LISTEN=two.address)
    second.launch()
    assert await asyncio.to_thread(second.wait) == 1
    said = [line for line in second.log.read_text().splitlines() if line.startswith("headwayd:")]
    assert said == [
        f"headwayd: cannot listen on {two.address}: taken, not an address of this machine, or not permitted"
    ]
    assert "Traceback" not in second.log.read_text()


@pytest.mark.slow
async def test_an_address_of_a_single_process_is_taken_for_workers(
    make_service: MakeService, fresh_store_server: StoreServer
) -> None:
    one = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    second = make_service(start=False, flags=WORKERS, HEADWAY_LISTEN=one.address)
    second.launch()
    assert await asyncio.to_thread(second.wait) == 1
    [line] = second.log.read_text().splitlines()
    assert line.startswith(f"headwayd: cannot listen on {one.address}: taken")


async def test_workers_that_cannot_start_end_the_whole_with_a_reason(
    make_service: MakeService, fresh_store_server: StoreServer, short_dir: Path
) -> None:
    # What Python runs at its start: here, the end of every worker.
    (short_dir / "sitecustomize.py").write_text(
        "import os, sys\nif 'headwayd.worker' in sys.orig_argv:\n    os._exit(7)\n"
    )
    service = make_service(
        start=False, flags=WORKERS, HEADWAY_REDIS_URL=fresh_store_server.url, PYTHONPATH=str(short_dir)
    )
    service.launch()
    assert await asyncio.to_thread(service.wait) == 1
    [line] = [line for line in service.log.read_text().splitlines() if line.startswith("headwayd:")]
    assert re.fullmatch(r"headwayd: worker [12] ended with 7 before it served", line)
    assert "Traceback" not in service.log.read_text()


def first_running(folder: Path, code: str) -> dict[str, str]:
    """The environment in which Python runs this at its start."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


# Here, in the supervisor, a process that cannot be started.
FAILS_TO_START = """
import asyncio.base_events, sys
if 'headwayd.worker' not in sys.orig_argv:
    loops, calls = asyncio.base_events.BaseEventLoop, []
    true = loops.subprocess_exec
    async def start(*command, **how):
        calls.append(command)
        if len(calls) == {call}:
            raise {error}
        return await true(*command, **how)
    loops.subprocess_exec = start
"""

# The same for one that was made already when there was neither a thread nor a file descriptor to wait for it.
CANNOT_BE_WAITED_FOR = """
import os, sys, threading
if 'headwayd.worker' not in sys.orig_argv:
    calls = []
    def failing(true, error, is_waiting):
        def act(*arguments):
            if is_waiting(*arguments):
                calls.append(arguments)
                if len(calls) == 3:
                    raise error
            return true(*arguments)
        return act
    threading.Thread.start = failing(
        threading.Thread.start, RuntimeError("can't start new thread"), lambda thread: 'waitpid' in thread.name
    )
    if hasattr(os, 'pidfd_open'):
        os.pidfd_open = failing(
            os.pidfd_open, OSError(24, 'Too many open files'), lambda pid, *_: pid != os.getpid()
        )
"""


@pytest.mark.parametrize(
    "error", ["OSError(11, 'no more processes')", "RuntimeError('no more threads')"], ids=["process", "thread"]
)
async def test_a_worker_that_cannot_be_started_anew_is_tried_again_and_the_others_go_on(
    make_service: MakeService,
    fresh_store_server: StoreServer,
    short_dir: Path,
    lines: Callable[[ServiceProcess], Lines],
    error: str,
) -> None:
    env = first_running(short_dir, FAILS_TO_START.format(call=3, error=error))
    service = make_service(flags=WORKERS, HEADWAY_REDIS_URL=fresh_store_server.url, **env)
    (doomed, _), (living, line) = (await lines(service).through_each("jobs")).items()
    await line.create()
    os.kill(doomed, signal.SIGKILL)
    await eventually(lambda: "worker could not be started" in service.log.read_text(), within=SEEN_S)
    await eventually(lambda: len(workers_of(service) - {doomed}) == 2, within=SEEN_S)
    assert living in workers_of(service)
    await line.put(b"1")
    await lines(service).through_each("jobs")  # the new one serves, too


async def test_a_worker_that_nobody_could_wait_for_is_not_left_behind(
    make_service: MakeService,
    fresh_store_server: StoreServer,
    short_dir: Path,
    lines: Callable[[ServiceProcess], Lines],
) -> None:
    env = first_running(short_dir, CANNOT_BE_WAITED_FOR)
    service = make_service(flags=WORKERS, HEADWAY_REDIS_URL=fresh_store_server.url, **env)
    doomed, living = await lines(service).through_each("jobs")
    os.kill(doomed, signal.SIGKILL)
    await eventually(lambda: "worker could not be started" in service.log.read_text(), within=SEEN_S)
    await eventually(lambda: service.log.read_text().count("worker serves") == 3, within=SEEN_S)
    await eventually(lambda: len(psutil.Process(service.pid).children()) == 2, within=SEEN_S)  # none waits to be reaped
    assert living in workers_of(service)


async def test_a_first_worker_that_cannot_be_started_ends_the_whole_with_a_reason(
    make_service: MakeService, fresh_store_server: StoreServer, short_dir: Path
) -> None:
    error = "OSError(11, 'no more processes')"
    env = first_running(short_dir, FAILS_TO_START.format(call=2, error=error))
    service = make_service(start=False, flags=WORKERS, HEADWAY_REDIS_URL=fresh_store_server.url, **env)
    service.launch()
    assert await asyncio.to_thread(service.wait) == 1
    [line] = [line for line in service.log.read_text().splitlines() if line.startswith("headwayd:")]
    assert re.fullmatch(r"headwayd: worker [12] could not be started: .*no more processes", line)
    assert "Traceback" not in service.log.read_text()
