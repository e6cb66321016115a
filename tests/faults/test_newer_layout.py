"""A newer version gave a queue a layout that this one does not know, as after a rollback: it is left alone, whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from faults.conftest import Open, Serve
from faults.table import ask, assert_unavailable
from harness import StoreServer, eventually, refused
from harness.scraping import scrape
from headway.v1 import queue_service_pb2
from wire.calls import ACKED, Keys, Line, payloads
from wire.every_call import REQUESTS, short

PREFIX = "__layout__"
NEWER = 3


@pytest.fixture
async def line(fresh_store_server: StoreServer, serve: Serve, open_line: Open) -> Line:
    """The queue."""
    return await open_line(await serve(fresh_store_server.url, PRESSURE_PREFIX=PREFIX), "jobs")


@pytest.fixture
def keys(fresh_store_server: StoreServer) -> Iterator[Keys]:
    """Its keys."""
    with fresh_store_server.client() as client:
        yield Keys(client, PREFIX, "jobs")


def held(client: redis.Redis) -> dict[bytes, bytes | None]:
    """All that the store holds."""
    return {key: client.dump(key) for key in client.scan_iter()}


async def assert_refused_by_every_call(line: Line) -> None:
    for method, request in REQUESTS.items():
        assert_unavailable(await ask(line, short(method), request(line.name), timeout=10.0), "LAYOUT")


async def test_a_queue_of_a_newer_layout_is_refused_by_every_call_and_nothing_of_it_is_touched(
    line: Line, keys: Keys
) -> None:
    await line.create()
    await line.put(b"leased", b"waits")
    lease = (await line.take_one(lease_ms=60_000)).lease
    keys.client.hset(keys["x:meta"], "layout", NEWER)
    before = held(keys.client)
    await assert_refused_by_every_call(line)
    with refused("STORE_UNAVAILABLE") as said:
        await line.ack(lease)
    assert said.metadata["cause"] == "LAYOUT"
    assert held(keys.client) == before
    keys.client.hset(keys["x:meta"], "layout", 1)
    assert await line.ack(lease) == [ACKED]
    assert payloads(await line.take(1)) == [b"waits"]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_so_is_what_a_foreign_client_left_of_it(line: Line, keys: Keys, is_made_anew: bool) -> None:
    """It took the queue away, and made another of that name: what a newer version knows of is its to forget."""
    await line.create()
    await line.put(b"waits")
    keys.client.hset(keys["x:meta"], "layout", NEWER)
    keys.client.hset(keys["x:newer"], "1", "precious")
    for suffix in keys.suffixes():
        keys.client.delete(keys[suffix])
    if is_made_anew:
        keys.client.set(keys["bound"], 0)
    before = held(keys.client)
    for call in (line.create, lambda: line.put(b"x"), line.get, line.delete):
        with refused("STORE_UNAVAILABLE") as said:
            await call()
        assert said.metadata["cause"] == "LAYOUT"
    assert held(keys.client) == before


async def test_other_queues_are_served_and_the_log_names_the_one(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, keys: Keys
) -> None:
    """Its leases lapse and its messages fall due without this version. It looks rarely, not in vain all the time."""
    first = await serve(fresh_store_server.url, PRESSURE_PREFIX=PREFIX)
    line = await open_line(first, "jobs")
    await line.create()
    await line.put(b"waits")
    await line.take_one(lease_ms=1_000)
    keys.client.hset(keys["x:meta"], "layout", NEWER)
    await asyncio.to_thread(first.stop)
    second = await serve(fresh_store_server.url, PRESSURE_PREFIX=PREFIX)  # which visits it at its start
    other = await open_line(second, "other")
    await other.create()
    await other.put(b"x")
    assert payloads(await other.take(1)) == [b"x"]
    await asyncio.sleep(1.5)
    told = second.log.read_text().count("a newer version has changed how this queue is kept")
    assert told == 1


async def test_a_list_fails_rather_than_leave_it_out_and_metrics_do_without_it(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, keys: Keys
) -> None:
    service = await serve(fresh_store_server.url, PRESSURE_PREFIX=PREFIX, HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    line, other = await open_line(service, "jobs"), await open_line(service, "other")
    for each in (line, other):
        await each.create()
        await each.put(b"x")
    keys.client.hset(keys["x:meta"], "layout", NEWER)
    with refused("STORE_UNAVAILABLE") as said:
        await line.stub.List(queue_service_pb2.ListRequest(), timeout=5)
    assert said.metadata["cause"] == "LAYOUT"

    async def is_told() -> bool:
        told = await scrape(service)
        return told.value("store_reachable") == 1 and told.value("queue_messages", queue="other", state="waiting") == 1

    await eventually(is_told, within=10)


async def test_a_queue_without_a_number_has_the_first_layout(line: Line, keys: Keys) -> None:
    await line.create()
    assert keys.client.hget(keys["x:meta"], "layout") == b"1"
    await line.put(b"waits")
    keys.client.hdel(keys["x:meta"], "layout")
    assert payloads(await line.take(1)) == [b"waits"]
