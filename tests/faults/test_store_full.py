"""The store is out of memory: nothing new is taken, nothing half, and all that makes room goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from harness import StoreServer, eventually, refused
from wire.calls import ACKED, EXTENDED, RELEASED, RESOURCE_EXHAUSTED, Keys, Line, Message, payloads, span

PREFIX = "__pressure__"


@pytest.fixture
def client(fresh_store_server: StoreServer) -> Iterator[redis.Redis]:
    """Fills the store when its `config_set("maxmemory", …)` is called."""
    with fresh_store_server.client() as opened:
        yield opened


async def test_a_full_store_takes_nothing_new_and_lets_all_else_go_on(line: Line, client: redis.Redis) -> None:
    keys = Keys(client, PREFIX, line.name)
    await line.create()
    await line.put(*(b"%d" % number for number in range(10)), Message(payload=b"later", delay=span(200)))
    first, second, third = [one.lease for one in await line.take(3, lease_ms=60_000)]
    client.config_set("maxmemory", "1mb")
    for _ in range(3):
        with refused("STORE_FULL", RESOURCE_EXHAUSTED) as said:
            await line.put(b"a" * 100, b"b" * 100)
        assert said.retry_delay
    with refused("STORE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"waiting does not help", wait_ms=5_000)
    with refused("STORE_FULL", RESOURCE_EXHAUSTED):
        await Line(line.stub, "another").create()
    await eventually(lambda: keys.length == 8)  # what falls due still joins the line
    counts = await line.counts()
    assert (counts.accepted, counts.length, counts.leased, counts.producers_waiting) == (11, 8, 3, 0)
    assert await line.ack(first) == [ACKED]
    assert [result.settled for result in await line.delay(second, delay_ms=0)] == [RELEASED]
    assert [result.settled for result in await line.extend(third)] == [EXTENDED]
    more = await line.take(2)
    assert payloads(more) == [b"1", b"3"]
    assert len((await line.get(1, ack=[more[0].lease])).deliveries) == 1
    assert [peeked.message.payload for peeked in await line.peek()] == [b"5"]
    await line.close()
    counts = await line.counts()
    assert (counts.acked, counts.accepted) == (2, 11)
    await line.delete()
    assert keys.all() == set()
    client.config_set("maxmemory", "0")
    await line.create()
    await line.put(b"works")
    assert payloads(await line.take()) == [b"works"]


async def test_a_put_refused_by_a_full_store_has_left_nothing(line: Line, client: redis.Redis) -> None:
    keys = Keys(client, PREFIX, line.name)
    await line.create(bound=3)
    await line.put(b"one")
    before = {key: client.dump(key) for key in keys.all()}
    client.config_set("maxmemory", "1")
    for _ in range(3):
        with refused("STORE_FULL"):
            await line.put(Message(id="new", payload=b"x" * 10_000), b"second")
    client.config_set("maxmemory", "0")
    assert {key: client.dump(key) for key in keys.all()} == before
    [result] = (await line.put(Message(id="new", payload=b"x"))).results
    assert (result.position, result.ticket) == (2, 2)


async def test_a_foreign_queue_can_be_got_from_though_the_store_is_full(line: Line, client: redis.Redis) -> None:
    keys = Keys(client, PREFIX, line.name)
    client.set(keys["bound"], 0)
    for token in ("producer_free", "consumer_free", "not_full"):
        client.lpush(keys[token], 0)
    client.lpush(keys[""], b"theirs")
    client.config_set("maxmemory", "1")
    assert payloads(await line.take()) == [b"theirs"]
