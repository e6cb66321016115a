"""A primary with replicas that Sentinels watch: it dies, or is silent, and another one takes over, under load."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import grpc
import pytest

import headway
from cluster.conftest import Open, Serve
from cluster.load import load_on, patient, times_of
from harness import StoreServer, WireError, error_of, eventually
from harness.engines import DETECTION_S, SERVICE, SentinelTrio
from headway.v1 import admin_service_pb2
from wire.calls import payloads

Figure = Callable[[str, str], None]
# What the service may take from the moment when the Sentinels name another primary. On a busy machine, more.
RECOVERY_S, MARGIN_S = 2.0, 5.0
PUT_EVERY_S = 0.02


async def another_primary(trio: SentinelTrio, than: StoreServer) -> None:
    """Returns when a Sentinel names another one."""
    await eventually(lambda: trio.primary is not than, within=30)


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.smoke), "pause"])
async def test_no_acknowledged_message_is_lost_when_the_primary_fails_under_load(
    trio: SentinelTrio, serve: Serve, open_line: Open, how: str, figure: Figure
) -> None:
    service = await serve(trio.url, HEADWAY_DURABILITY="replicated")
    line = await open_line(service, "jobs")
    assert (await line.create()).queue.durability == "replicated"
    async with (
        headway.connect(service.address) as client,
        patient(client.queue("jobs")) as patience,
        load_on(line) as books,
    ):
        old = trio.primary
        failed_at = time.monotonic()
        old.kill() if how == "kill" else old.pause()
        await another_primary(trio, old)
        named_at = time.monotonic()
        await eventually(lambda: max(books.accepted.values()) > named_at, within=RECOVERY_S + MARGIN_S)
        if how == "pause":
            old.resume()
    assert books.lost == set()
    # The client's own tries, and calls that wait in the service, are enough where so many replicas follow as must.
    assert patience.failures == []
    figure(f"Sentinels, {how}: another primary is named after", f"{named_at - failed_at:.1f} s")
    first = min(at for at in books.accepted.values() if at > named_at)
    figure(f"Sentinels, {how}: first Put accepted after that", f"{first - named_at:.2f} s")
    figure(
        f"Sentinels, {how}: longest outage", f"{books.longest_outage_s:.1f} s, silence noticed after {DETECTION_S} s"
    )
    figure(f"Sentinels, {how}: errors meanwhile", times_of(books))
    figure(f"Sentinels, {how}: not confirmed to a client that tries", f"{patience.unconfirmed_count} Puts")
    figure(f"Sentinels, {how}: accepted, none lost", f"{len(books.accepted)} messages")


@pytest.mark.smoke
async def test_nothing_is_put_on_a_new_primary_that_keeps_less_than_is_demanded(
    trio: SentinelTrio, serve: Serve, open_line: Open
) -> None:
    old = trio.primary
    for server in trio.servers:
        with server.client() as client:
            client.config_set("min-replicas-to-write", 0)
            client.config_set("appendfsync", "always" if server is old else "everysec")
    line = await open_line(await serve(trio.url, HEADWAY_DURABILITY="always"), "jobs")
    await line.create()
    told: list[WireError] = []

    async def put(number: int) -> None:
        try:
            await line.put(b"%d" % number)
        except grpc.aio.AioRpcError as error:
            told.append(error_of(error))

    def is_not_durable() -> bool:
        return any(error.reason == "NOT_DURABLE" for error in told)

    await put(0)
    assert told == []
    await asyncio.to_thread(old.kill)
    async with asyncio.TaskGroup() as group:  # of some that wait in the service until there is a primary again
        for number in itertools.count(1):
            group.create_task(put(number))
            if is_not_durable():
                break
            await asyncio.sleep(PUT_EVERY_S)
    seen = [one.message.payload for one in await line.peek(1_000)]
    assert seen in ([b"0"], [])  # it may not have been replicated
    assert len(told) == number
    await another_primary(trio, old)
    with trio.primary.client() as client:
        client.config_set("appendfsync", "always")

    async def is_put() -> bool:
        before = len(told)
        await put(0)
        return len(told) == before

    await eventually(is_put, within=20)  # the service looks again every 10 s


async def test_those_who_wait_are_woken_through_the_new_primary(
    trio: SentinelTrio, serve: Serve, open_line: Open, figure: Figure
) -> None:
    one, other = [await open_line(await serve(trio.url), "jobs") for _ in range(2)]
    await one.create()
    waiting = [asyncio.create_task(one.get(wait_ms=30_000)) for _ in range(5)]

    async def all_wait() -> bool:
        return (await other.counts()).consumers_waiting == 5

    await eventually(all_wait)
    old = trio.primary
    with trio.sentinels[0].client() as client:
        client.execute_command("SENTINEL", "FAILOVER", SERVICE)
    await another_primary(trio, old)
    await eventually(all_wait, within=10)

    async def is_put() -> bool:
        try:
            await other.put(*[b"%d" % number for number in range(5)])
        except grpc.aio.AioRpcError as error:
            assert error_of(error).reason == "NOT_DURABLE"  # no replica follows yet
            return False
        return True

    await eventually(is_put, within=20)
    began = time.monotonic()
    answers = await asyncio.gather(*waiting)
    took_s = time.monotonic() - began
    assert sorted(payloads([answer.deliveries[0] for answer in answers])) == [b"%d" % number for number in range(5)]
    figure("five waiting Gets served after a switch", f"{took_s * 1000:.0f} ms after the Put")
    assert took_s < 4.0  # by a hint: the safety check comes after 5 s


async def test_a_sentinel_that_is_gone_is_not_missed(trio: SentinelTrio, serve: Serve, open_line: Open) -> None:
    trio.sentinels[0].stop()
    line = await open_line(await serve(trio.url), "jobs")
    await line.create()
    await line.put(b"one")
    assert line.admin
    told = await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)
    assert told.store.reachable
    assert payloads(await line.take(1)) == [b"one"]
