"""Calls that wait end when their caller may not any more, within a minute, and take nothing into nowhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from harness import ServiceProcess, eventually, refused
from harness.errors import error_of
from headway.v1 import message_pb2
from security.callers import Caller, line_of, short_lived, write_callers
from wire.calls import Line, leases, payloads
from wire.flows import Producing

pytestmark = pytest.mark.any_store

Start = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]
ADMIN = Caller(roles=("admin",), namespace="team")
PATIENCE_S = 60.0
TAKEN_BACK_S = 30.0  # noticed by a look every few seconds
HOUR_MS = 3_600_000


async def stand(line: Line, *, consumers: int = 0, producers: int = 0) -> bool:
    counts = await line.counts()
    return (counts.consumers_waiting, counts.producers_waiting) == (consumers, producers)


def assert_half_put(results: Iterable[message_pb2.PutResult]) -> None:
    """What was accepted before the end is told."""
    first, second = results
    assert first.ticket
    assert not first.error.code
    assert second.error.code == grpc.StatusCode.UNAUTHENTICATED.value[0]


@pytest.mark.long
async def test_a_get_and_a_put_that_wait_end_when_their_token_expires(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    file = write_callers(short_dir / "callers.toml", [ADMIN])
    service = start(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        empty, full, both = [line_of(channel, ADMIN, f"{name}-{which}") for which in ("empty", "full", "both")]
        await empty.create()
        await full.create(bound=1)
        await both.create(bound=1)
        await full.put(b"in the way")
        caller = await short_lived(file, [ADMIN], empty, channel)
        began_at = time.monotonic()
        getting = asyncio.create_task(line_of(channel, caller, empty.name).get(wait_ms=HOUR_MS))
        over_http = asyncio.create_task(
            client.post(
                f"{service.http}/headway.v1.QueueService/Get",
                json={"queue": empty.name, "wait": "3600s"},
                headers=dict(caller.metadata),
            )
        )
        putting = asyncio.create_task(line_of(channel, caller, full.name).put(b"no room", wait_ms=HOUR_MS))
        half = asyncio.create_task(line_of(channel, caller, both.name).put(b"fits", b"does not", wait_ms=HOUR_MS))
        await eventually(partial(stand, empty, consumers=2))
        await eventually(partial(stand, full, producers=1))
        await eventually(partial(stand, both, producers=1))
        for call in (getting, putting):
            with refused("UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED):
                await call
        answer = await over_http
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert_half_put((await half).results)
        assert time.monotonic() - began_at < PATIENCE_S
        # Nobody is left standing, and what comes now is for those who may.
        for line, waiting in ((empty, []), (full, [b"in the way"]), (both, [b"fits"])):
            await eventually(partial(stand, line))
            assert payloads((await line.get(10)).deliveries) == waiting
        await empty.put(b"later")
        [delivery] = await empty.take(1)
        assert (delivery.message.payload, delivery.attempt) == (b"later", 1)


async def test_a_get_that_settled_tells_that_when_its_wait_is_cut_off(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    caller = Caller(roles=("consumer",), namespace="team")
    file = write_callers(short_dir / "callers.toml", [ADMIN, caller])
    service = start(HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        line = line_of(channel, ADMIN, name)
        await line.create()
        await line.put(b"1", b"2")
        own = line_of(channel, caller, name)
        held = leases(await own.take(2, lease_ms=HOUR_MS))
        getting = asyncio.create_task(own.get(wait_ms=HOUR_MS, ack=held[:1]))
        await eventually(partial(stand, line, consumers=1))
        write_callers(file, [ADMIN])
        answer = await asyncio.wait_for(getting, TAKEN_BACK_S)
        assert (len(answer.settled), len(answer.deliveries)) == (1, 0)
        assert (await line.counts()).acked == 1


async def test_a_batch_that_waits_on_a_stream_is_told_how_far_it_was_put(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    caller = Caller(roles=("producer",), namespace="team")
    file = write_callers(short_dir / "callers.toml", [ADMIN, caller])
    service = start(HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        line = line_of(channel, ADMIN, name)
        await line.create(bound=1)
        async with Producing(line_of(channel, caller, name)) as stream:
            half = await stream.send(b"fits", b"does not")
            behind = await stream.send(b"behind")
            await eventually(partial(stand, line, producers=1))
            write_callers(file, [ADMIN])
            with refused("UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED):
                await stream.ended(within=TAKEN_BACK_S)
        assert stream.answered == [half] != [behind]
        assert_half_put(stream.seen[0].results)
        await eventually(partial(stand, line))
        assert payloads((await line.get(10)).deliveries) == [b"fits"]


async def test_no_message_goes_to_nowhere_while_waits_are_cut_off(
    start: Start, connect: Connect, short_dir: Path, name: str
) -> None:
    """Messages come all the time; whoever was given one has it, and the others wait."""
    caller = Caller(roles=("consumer",), namespace="team")
    file = write_callers(short_dir / "callers.toml", [ADMIN, caller])
    service = start(HEADWAY_AUTH_FILE=str(file))
    async with connect(service.address) as channel:
        line = line_of(channel, ADMIN, name)
        await line.create()
        own = line_of(channel, caller, name)
        got: list[str] = []

        async def get() -> None:
            while True:
                try:
                    answer = await own.get(wait_ms=HOUR_MS, lease_ms=HOUR_MS)
                except grpc.aio.AioRpcError as error:
                    assert error_of(error).reason == "UNAUTHENTICATED"
                    return
                got.extend(leases(answer.deliveries))

        getters = [asyncio.create_task(get()) for _ in range(20)]
        put = 0
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while not all(getter.done() for getter in getters):
            assert asyncio.get_running_loop().time() < until
            await line.put(b"x")
            put += 1
            if put == 30:
                write_callers(file, [ADMIN])
        await asyncio.gather(*getters)

        async def all_is_accounted_for() -> bool:
            counts = await line.counts()
            return (counts.leased, counts.length) == (len(got), put - len(got))

        assert got
        await eventually(all_is_accounted_for)
