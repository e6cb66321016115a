"""Durability that is demanded: what a store must keep to be begun with, and what happens when it comes to keep less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from faults.conftest import Open, Serve
from faults.table import LEASE, ask, requests
from harness import FaultProxy, ServiceProcess, StoreServer, WireError, error_of, eventually, refused
from headway.v1 import admin_service_pb2
from wire.calls import UNAVAILABLE, Line, payloads

MakeService = Callable[..., ServiceProcess]
MakeStore = Callable[..., StoreServer]


def store_that(make_store_server: MakeStore, fsync: str) -> StoreServer:
    """One with this appendfsync; "off": without a file."""
    if fsync == "off":
        return make_store_server(durable=False)
    return make_store_server("--appendfsync", fsync)


@pytest.mark.parametrize(
    "case",
    [
        ("memory", "off", "memory"),
        ("memory", "everysec", "everysec"),
        ("everysec", "everysec", "everysec"),
        ("everysec", "always", "always"),
        ("always", "always", "always"),
        ("auto", "no", "memory"),
    ],
    ids="-".join,
)
async def test_a_store_that_keeps_as_much_is_used_and_says_what_it_keeps(
    make_store_server: MakeStore, serve: Serve, open_line: Open, case: tuple[str, str, str]
) -> None:
    demanded, fsync, found = case
    store = store_that(make_store_server, fsync)
    line = await open_line(await serve(store.url, HEADWAY_DURABILITY=demanded), "jobs")
    assert (await line.create()).queue.durability == found
    assert line.admin
    told = await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)
    assert told.store.durability == found


@pytest.mark.parametrize(
    "case",
    [
        ("everysec", "off", "and the store keeps 'memory'"),
        ("everysec", "no", "and the store keeps 'memory'"),
        ("always", "everysec", "and the store keeps 'everysec'"),
        ("replicated", "always", "and min-replicas-to-write is 0: set it to 1"),
    ],
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_a_store_that_keeps_less_is_not_begun_with(
    make_store_server: MakeStore, make_service: MakeService, case: tuple[str, str, str]
) -> None:
    demanded, fsync, said = case
    store = store_that(make_store_server, fsync)
    service = make_service(HEADWAY_REDIS_URL=store.url, HEADWAY_DURABILITY=demanded, start=False)
    service.launch()
    assert service.wait() == 1
    assert f"durability {demanded!r} is asked for, {said}" in service.log.read_text()


def test_a_store_whose_replicas_may_lag_for_ever_is_not_begun_with(
    make_store_server: MakeStore, make_service: MakeService
) -> None:
    store = make_store_server("--min-replicas-to-write", "1", "--min-replicas-max-lag", "0")
    service = make_service(HEADWAY_REDIS_URL=store.url, HEADWAY_DURABILITY="replicated", start=False)
    service.launch()
    assert service.wait() == 1
    assert "durability 'replicated' is asked for, and min-replicas-max-lag is 0" in service.log.read_text()


async def test_a_store_that_comes_to_keep_less_is_not_written_to_until_it_keeps_it_again(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    line = await open_line(await serve(fresh_store_server.url, HEADWAY_DURABILITY="everysec"), "jobs")
    await line.create()
    await line.put(b"before")
    with fresh_store_server.client() as client:
        client.config_set("appendonly", "no")
    assert line.admin
    await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)  # which looks
    with refused("NOT_DURABLE", UNAVAILABLE) as said:
        await line.put(b"refused")
    assert said.retry_delay
    assert (await line.describe()).counts.accepted == 1
    await assert_can_be_looked_at(line)
    with fresh_store_server.client() as client:
        client.config_set("appendonly", "yes")
    await eventually(lambda: is_put(line), within=10)
    assert payloads(await line.take(2)) == [b"before", b"again"]


async def test_a_store_that_comes_back_with_other_settings_is_not_written_to_before_it_has_said_what_it_keeps(
    make_store_server: MakeStore, serve: Serve, open_line: Open
) -> None:
    store = store_that(make_store_server, "everysec")
    line = await open_line(await serve(store.url, HEADWAY_DURABILITY="everysec"), "jobs")
    await line.create()
    await line.put(b"before")
    store.options = ("--appendfsync", "no")
    store.restart()
    async with asyncio.timeout(5):
        while await reason_of_put(line) != "NOT_DURABLE":
            assert (await line.describe()).counts.accepted == 1
    store.options = ("--appendfsync", "always")
    store.restart()
    await eventually(lambda: is_put(line), within=10)
    assert payloads(await line.take(2)) == [b"before", b"again"]


async def test_a_store_that_was_away_at_the_start_is_not_written_to_before_it_has_said_what_it_keeps(
    make_store_server: MakeStore, serve: Serve, open_line: Open
) -> None:
    store = store_that(make_store_server, "always")
    async with FaultProxy(store.port) as wire:
        wire.cut()
        line = await open_line(await serve(wire.url, HEADWAY_DURABILITY="always"), "jobs")
        with refused("STORE_UNAVAILABLE", UNAVAILABLE):
            await line.create()
        plain = await open_line(await serve(store.url), "jobs")
        await plain.create()
        with store.client() as client:
            client.config_set("appendonly", "no")
        wire.restore()
        until = asyncio.get_running_loop().time() + 2.5  # the service looks by itself every second
        while asyncio.get_running_loop().time() < until:
            assert not await is_put(line)
        assert (await line.describe()).counts.accepted == 0  # reading is allowed
        with store.client() as client:
            client.config_set("appendonly", "yes")
        await eventually(lambda: is_put(line), within=10)


@pytest.mark.long
async def test_a_message_that_too_few_replicas_have_is_said_to_be_of_unknown_outcome(
    replicated_pair: tuple[StoreServer, StoreServer], serve: Serve, open_line: Open
) -> None:
    primary, replica = replicated_pair
    line = await open_line(await serve(primary.url, HEADWAY_DURABILITY="replicated"), "jobs")
    assert (await line.create()).queue.durability == "replicated"
    await asyncio.gather(*(line.put(b"safe") for _ in range(50)))
    replica.pause()
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE) as said:
        await line.put(b"perhaps")
    assert said.metadata["cause"] == "REPLICAS"
    assert said.retry_delay
    assert (await line.describe()).counts.accepted == 51  # reading waits for no replica
    await assert_can_be_looked_at(line)

    async def is_refused() -> bool:
        return await reason_of_put(line) == "NOT_DURABLE"

    await eventually(is_refused, within=10)  # the primary has noticed
    replica.resume()
    await eventually(lambda: is_put(line), within=20)


async def assert_can_be_looked_at(line: Line) -> None:
    """What only reads needs nothing of the store but that it answers."""
    asked = requests(line.name, LEASE)
    for name in ("Describe", "List", "Peek", "ListLeased", "ListDead", "Check"):
        assert (await ask(line, name, asked[name], timeout=10)).error == WireError(), name


async def reason_of_put(line: Line) -> str:
    """Why a Put is refused; "" if it is not."""
    try:
        await line.put(b"again")
    except grpc.aio.AioRpcError as error:
        return error_of(error).reason
    return ""


async def is_put(line: Line) -> bool:
    """Whether a Put is accepted."""
    return not await reason_of_put(line)
