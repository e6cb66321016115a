"""However a stream in the consumer line ends, it gives up its place and what it has leased, and the next is served."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from faults.conftest import Connect, Open, Serve
from harness import FaultProxy, ServiceProcess, StoreServer, eventually, refused
from wire.calls import NOT_FOUND, Line, line_at, payloads, span
from wire.conditions import consumers_wait, leased
from wire.operators import assert_sound
from wire.streams import Standing

pytestmark = pytest.mark.any_store

LONG_MS = 3_600_000
SOON_S = 5.0  # the promises are shorter; this machine does other things, too
Figure = Callable[[str, str], None]


class Wire(FaultProxy):
    """Between clients and a service."""

    def __init__(self, service: ServiceProcess) -> None:
        super().__init__(int(service.address.rpartition(":")[2]))
        self._to_service: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._to_service.add(writer)
        await super()._ask(reader, writer)

    def reset(self) -> None:
        """The service sees RST."""
        for writer in self._to_service:
            self._reset(writer)


@pytest.fixture
async def service(fresh_store_server: StoreServer, serve: Serve) -> ServiceProcess:
    """A service that soon notices a silent connection."""
    return await serve(
        fresh_store_server.url, HEADWAY_KEEPALIVE="1s", HEADWAY_KEEPALIVE_TIMEOUT="500ms", HEADWAY_LOG_LEVEL="info"
    )


def tidied(service: ServiceProcess) -> bool:
    """It has tidied up after somebody, at the least after whoever had gone before it started."""
    return "processes.gone" in service.log.read_text()


@asynccontextmanager
async def far_line(service: ServiceProcess, connect: Connect) -> AsyncIterator[tuple[Line, Wire]]:
    """The queue over a wire of its own."""
    async with Wire(service) as wire, line_at(wire.address, "jobs", connect) as line:
        yield line, wire


@pytest.mark.parametrize("how", ["cancel", "deadline", "close", "reset", "silence"])
async def test_a_stream_that_ends_gives_up_place_and_leases_and_the_next_is_served(
    service: ServiceProcess, open_line: Open, connect: Connect, how: str, figure: Figure
) -> None:
    """One holder and one waiter of each kind of end; behind them somebody who stays."""
    line = await open_line(service, "jobs")
    await line.create(limit=1, lease=span(LONG_MS))
    await line.put(b"1")
    deadline_s = 1.5 if how == "deadline" else None
    async with far_line(service, connect) as (far, wire):
        holder = Standing(far, deadline_s=deadline_s)
        await holder.granted()
        waiter = Standing(far, deadline_s=deadline_s)
        await waiter.position(1)
        async with Standing(line) as stays:
            ended_at = time.monotonic()
            if how == "cancel":
                await holder.end()
                await waiter.end()
            elif how == "deadline":
                assert await holder.ended() is grpc.StatusCode.DEADLINE_EXCEEDED
                ended_at = time.monotonic()
            elif how == "close":
                wire.cut()
            elif how == "reset":
                wire.reset()
            else:
                wire.silent = True
            [again] = await stays.granted()
            figure(f"next served after {how}", f"{time.monotonic() - ended_at:.3f} s")
            assert again.attempt == 1
            await line.ack(again.lease)
        await eventually(lambda: consumers_wait(line, 0), within=SOON_S)
        await assert_sound(line)
        await asyncio.gather(holder.end(), waiter.end())


class Holders:
    """Client processes that hold something until they are killed (`holder.py`)."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("holder.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, address: str, queue: str) -> int:
        """The process id of one more, when it has got something."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{address} {queue}\n".encode())
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def close(self) -> None:
        """All end."""
        self._program.kill()
        self._program.communicate()


@pytest.mark.slow
async def test_a_client_killed_while_it_holds_a_lease_makes_room_for_the_next_at_once(
    service: ServiceProcess, open_line: Open, figure: Figure
) -> None:
    line = await open_line(service, "jobs")
    await line.create(limit=1, lease=span(LONG_MS))
    await line.put(b"1")
    spans_ms: list[float] = []
    holders = Holders()
    try:
        async with asyncio.timeout(100):
            for _ in range(100):
                holder = await asyncio.to_thread(holders.start, service.address, "jobs")
                async with Standing(line) as following:
                    await following.position(1)
                    killed_at = time.monotonic()
                    os.kill(holder, signal.SIGKILL)
                    [again] = await following.granted()
                    spans_ms.append((time.monotonic() - killed_at) * 1_000)
                    assert again.attempt == 1
                await eventually(lambda: leased(line, 0))
    finally:
        holders.close()
    p50, p99 = statistics.median(spans_ms), sorted(spans_ms)[98]
    figure("next holds the lease of a client killed -9", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(spans_ms)} kills")
    assert p99 < SOON_S * 1_000
    await assert_sound(line)


@dataclass
class Pair:
    """A service that comes to grief, the queue through it, and the queue through another service."""

    service: ServiceProcess
    there: Line
    line: Line


@pytest.fixture
async def pair(fresh_store_server: StoreServer, serve: Serve, open_line: Open) -> Pair:
    service = await serve(fresh_store_server.url)
    there = await open_line(service, "jobs")
    return Pair(service, there, await open_line(await serve(fresh_store_server.url), "jobs"))


async def test_a_killed_service_leaves_nobody_standing_and_what_its_streams_held_comes_back(
    pair: Pair, fresh_store_server: StoreServer, figure: Figure
) -> None:
    there, line = pair.there, pair.line
    await line.create(lease=span(LONG_MS))
    await line.put(b"1", b"2")
    holders = [Standing(there, keep_standing=True), Standing(there, keep_standing=True)]
    [done], _ = await holders[0].granted(), await holders[1].granted()
    await there.ack(done.lease)
    await holders[0].position(1)  # a holder that goes on before all others
    before = Standing(there)
    await before.position(2)
    async with Standing(line) as stays:
        await stays.position(3)
        await asyncio.sleep(3)  # the other service has just begun, and tidies up after all who went before it
        killed_at = time.monotonic()
        await asyncio.to_thread(pair.service.kill)
        [again] = await stays.granted()
        figure("leases of a killed service's streams are back", f"{time.monotonic() - killed_at:.3f} s")
        assert again.attempt == 1
        await line.ack(again.lease)
    await asyncio.gather(*(one.ended() for one in (*holders, before)))
    with fresh_store_server.client() as client:
        left = {key.rpartition(b":x:")[2] for key in client.keys("__pressure__:jobs:x:*")}
    assert left & {b"owners", b"held", b"turns", b"consumers", b"places", b"place_at"} == set()
    await assert_sound(line)


async def test_waiters_of_a_killed_service_hold_nobody_up(pair: Pair, figure: Figure) -> None:
    line = pair.line
    await line.create()
    lost = [Standing(pair.there) for _ in range(40)]
    await eventually(lambda: consumers_wait(line, 40))
    async with Standing(line) as stays:
        await stays.position(41)
        await asyncio.to_thread(pair.service.kill)
        killed_at = time.monotonic()
        await line.put(b"1")
        await stays.granted()
        figure("served behind 40 waiters of a killed service", f"{time.monotonic() - killed_at:.3f} s")
    await asyncio.gather(*(one.ended() for one in lost))


async def test_a_frozen_service_is_passed_over_and_finds_its_place_again(pair: Pair, figure: Figure) -> None:
    line = pair.line
    await line.create()
    first = Standing(pair.there)
    await first.position(1)
    async with first, Standing(line) as second, Standing(line) as third:
        await third.position(3)
        pair.service.signal(signal.SIGSTOP)
        try:
            stopped_at = time.monotonic()
            await line.put(b"1")
            await second.granted()
            figure("passed over when its service was frozen", f"{time.monotonic() - stopped_at:.3f} s")
        finally:
            pair.service.signal(signal.SIGCONT)
        await eventually(lambda: consumers_wait(line, 2))
        await third.position(2)
        await line.put(b"2")
        assert len(await first.granted()) == 1
        assert not third.turns
    await eventually(lambda: leased(line, 0))
    await assert_sound(line)


async def test_streams_stand_through_a_restart_of_the_store_in_their_order_and_holders_keep_what_they_hold(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    lines = [await open_line(await serve(fresh_store_server.url), "jobs") for _ in range(2)]
    await lines[0].create(lease=span(LONG_MS))
    await lines[0].put(b"held")
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(Standing(lines[1]))
        [held] = await holder.granted()
        standing = [await stack.enter_async_context(Standing(lines[number % 2])) for number in range(6)]
        await asyncio.to_thread(fresh_store_server.restart)
        with fresh_store_server.client() as client:
            await eventually(lambda: len(client.pubsub_channels("*headway*")) == 2, within=SOON_S)
        await eventually(lambda: consumers_wait(lines[0], 6), within=SOON_S)
        for number, one in enumerate(standing):
            await lines[0].put(b"%d" % number)
            assert [delivery.message.payload for delivery in await one.granted()] == [b"%d" % number]
        assert (await lines[0].counts()).leased == 7
        await lines[0].ack(held.lease)
        assert await holder.ended() is grpc.StatusCode.OK


async def test_a_stream_that_going_down_ends_tells_so_when_its_place_is_kept(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    """Whoever is told comes back at once, through another service."""
    async with FaultProxy(fresh_store_server.port) as proxy:
        leaving = await serve(proxy.url)
        there = await open_line(leaving, "jobs")
        line = await open_line(await serve(fresh_store_server.url), "jobs")
        await line.create(place_grace=span(60_000))
        first = Standing(there)
        place = (await first.position(1)).place
        async with Standing(line) as second:
            await second.position(2)
            proxy.silent = True
            leaving.signal(signal.SIGTERM)
            await eventually(lambda: "told to stop" in leaving.log.read_text())
            ending = asyncio.ensure_future(first.ended())
            await asyncio.wait({ending}, timeout=0.5)
            assert not ending.done()
            proxy.silent = False
            assert await ending is grpc.StatusCode.UNAVAILABLE
            async with Standing(line, place=place) as back:
                await back.position(1)


async def test_who_is_cut_off_for_a_moment_keeps_what_it_holds_though_another_service_has_died(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    """Others tidy up after the dead one just when this one is not heard either."""
    async with FaultProxy(fresh_store_server.port) as proxy:
        services = [await serve(url) for url in (proxy.url, fresh_store_server.url, fresh_store_server.url)]
        cut_off, there, line = [await open_line(service, "jobs") for service in services]
        dying = services[1]
        for service in services:  # each tidies once as it starts: that one spares nobody who came later
            await eventually(partial(tidied, service), within=10)
        await line.create(lease=span(LONG_MS))
        await line.put(b"1", b"2")
        async with Standing(cut_off) as holder:
            await holder.granted()
            lost = Standing(there)
            await lost.granted()
            async with Standing(line) as following:
                await following.position(1)
                await asyncio.to_thread(dying.kill)
                await asyncio.sleep(1.3)  # the dead are buried 2 s after they were missed
                proxy.cut()
                [again] = await following.granted()
                assert again.message.payload == b"2"
                proxy.restore()
            await eventually(lambda: leased(line, 1), within=SOON_S)
            assert not holder.call.done()
        await lost.ended()


async def stop_for_a_moment(service: ServiceProcess) -> None:
    """It learns late of what comes meanwhile."""
    service.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(0.15)
    finally:
        service.signal(signal.SIGCONT)


async def test_who_comes_back_elsewhere_before_the_end_is_seen_has_its_place(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    services = [await serve(fresh_store_server.url) for _ in range(2)]
    lines = [await open_line(service, "jobs") for service in services]
    await lines[0].create(place_grace=span(60_000))
    first = Standing(lines[0])
    place = (await first.position(1)).place
    async with Standing(lines[1]) as behind:
        await behind.position(2)
        for times in range(4):
            left, entered = times % 2, 1 - times % 2
            stopping = asyncio.create_task(stop_for_a_moment(services[left]))
            await asyncio.sleep(0.01)
            first.call.cancel()
            first = Standing(lines[entered], place=place)
            assert (await first.position(1)).place == place
            await stopping
        stopping = asyncio.create_task(stop_for_a_moment(services[0]))
        await asyncio.sleep(0.01)
        first.call.cancel()
        standing = (await lines[1].get(stand=True, place=place)).standing
        assert (standing.place, standing.position) == (place, 1)
        await stopping


async def test_who_comes_back_at_once_has_its_place_however_often(service: ServiceProcess, connect: Connect) -> None:
    async with line_at(service.address, "noise", connect) as noise, line_at(service.address, "jobs", connect) as line:
        await noise.create()
        await line.create(place_grace=span(60_000))

        async def put() -> None:
            while True:
                await noise.put(b"1")

        putting = [asyncio.create_task(put()) for _ in range(20)]
        try:
            standing = Standing(line)
            place = (await standing.position(1)).place
            for _ in range(300):
                standing.call.cancel()
                standing = Standing(line, place=place)
                assert (await standing.position(1)).place == place
        finally:
            for one in putting:
                one.cancel()
            await asyncio.wait(putting)


async def test_a_place_that_a_stream_has_is_nobody_elses(service: ServiceProcess, connect: Connect) -> None:
    async with line_at(service.address, "jobs", connect) as line:
        await line.create(place_grace=span(60_000))
        async with Standing(line) as holder:
            await holder.position(1)
            with refused("PLACE_LOST", NOT_FOUND):
                await Standing(line, place=holder.place).position(1)
            await line.put(b"1")
            assert payloads(await holder.granted()) == [b"1"]
