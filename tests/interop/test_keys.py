"""The twelve keys of pressure 0.15 to the letter, and nothing left after a Delete."""

from __future__ import annotations

import pytest

from headway.v1 import queue_pb2
from interop.foreign import Foreign
from properties.hostile import OLD_SUFFIXES, PRESSURE_SUFFIXES
from wire.calls import Keys, Line, message, span

AFTER_CREATE = {"bound", "producer_free", "consumer_free", "not_full"}
COUNTERS = {
    "stats:produced_messages",
    "stats:produced_bytes",
    "stats:consumed_messages",
    "stats:consumed_bytes",
}


async def test_a_stock_client_names_the_same_twelve_keys(foreign: Foreign, keys: Keys) -> None:
    theirs = {key.decode() for key in foreign.queue.keys.values()}
    assert theirs == {keys[""], *(keys[suffix] for suffix in PRESSURE_SUFFIXES)}


@pytest.mark.parametrize("bound", [0, 3])
async def test_after_our_create_the_same_keys_exist_as_after_a_foreign_one(line: Line, keys: Keys, bound: int) -> None:
    await line.create(bound=bound)
    assert keys.suffixes() == AFTER_CREATE
    assert keys.client.get(keys["bound"]) == b"%d" % bound
    for token in ("producer_free", "consumer_free", "not_full"):
        assert keys.client.lrange(keys[token], 0, -1) == [b"0"]


async def test_keys_appear_and_vanish_as_the_protocol_says(line: Line, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    produced = {"stats:produced_messages", "stats:produced_bytes", "producer"}
    assert keys.suffixes() == (AFTER_CREATE | produced | {""}) - {"not_full"}
    await line.get()
    assert keys.suffixes() == AFTER_CREATE | COUNTERS | {"producer", "consumer"}
    await line.close()
    assert keys.suffixes() == AFTER_CREATE | COUNTERS | {"producer", "consumer", "closed"}
    assert keys.client.llen(keys["closed"]) == 2


async def test_a_full_life_uses_no_key_outside_the_twelve_and_our_own_region(line: Line, keys: Keys) -> None:
    await use_everything(line)
    assert keys.suffixes() <= {"", *PRESSURE_SUFFIXES}


async def use_everything(line: Line) -> None:
    """A queue with messages in every state and every kind of bookkeeping."""
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    framed, later = message(b"with an id"), message(b"later")
    framed.id, later.id = "one", "two"
    framed.headers["colour"] = "red"
    later.delay.CopyFrom(span(600_000))
    await line.put(framed, later, b"3", b"4", b"5", b"6")
    taken = await line.take(4)
    await line.ack(taken[0].lease)
    await line.delay(taken[1].lease, delay_ms=0)  # its only attempt: dead
    await line.delay(taken[2].lease, delay_ms=0, keep_attempt=True)
    counts = await line.counts()
    assert (counts.acked, counts.dead, counts.returned, counts.leased, counts.delayed) == (1, 1, 1, 1, 1)


async def test_our_delete_removes_every_key_and_all_three_spellings_of_the_counters(line: Line, keys: Keys) -> None:
    await use_everything(line)
    for suffix in OLD_SUFFIXES:
        keys.client.set(keys[suffix], 7)
    await line.delete()
    assert keys.all() == set()


async def test_our_delete_touches_no_queue_whose_name_continues_this_one(line: Line, keys: Keys) -> None:
    await line.create()
    neighbours = [Line(line.stub, line.name + tail) for tail in (":b", ":closed_", "x", ":stats:b", ":b:c")]
    for neighbour in neighbours:
        await neighbour.create()
        await neighbour.put(neighbour.name.encode())
    await line.delete()
    for neighbour in neighbours:
        assert [seen.message.payload for seen in await neighbour.peek()] == [neighbour.name.encode()]
        await neighbour.delete()
    assert keys.all() == set()


async def test_our_counters_are_spelled_as_the_newest_clients_spell_them(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"123")
    await line.get()
    stored = {suffix: keys.client.get(keys[suffix]) for suffix in COUNTERS}
    assert stored == {
        "stats:produced_messages": b"1",
        "stats:produced_bytes": b"3",
        "stats:consumed_messages": b"1",
        "stats:consumed_bytes": b"3",
    }
    assert not any(keys.client.exists(keys[suffix]) for suffix in OLD_SUFFIXES)
