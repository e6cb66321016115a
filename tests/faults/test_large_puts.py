"""Batches whose payloads do not go through a script stay whole, whatever happens to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from faults.conftest import Open, Serve
from harness import StoreServer, eventually, refused
from harness.batches import batches_put, drained, gates_tried
from wire.calls import UNAVAILABLE, Line, span
from wire.operators import assert_sound

MakeStore = Callable[..., StoreServer]
Figure = Callable[[str, str], None]
MANY = [b"%03d" % number + b"x" * 500 for number in range(200)]


async def test_no_batch_is_torn_when_the_store_is_killed(
    make_store_server: MakeStore, serve: Serve, open_line: Open, figure: Figure
) -> None:
    store = make_store_server("--appendfsync", "always")
    line = await open_line(await serve(store.url), "jobs")
    await line.create(lease=span(60_000))
    tried = 0
    async with batches_put(line) as batches:
        for _ in range(3):
            await eventually(partial(batches.are_more, len(batches.accepted) + 10), within=20)
            tried += gates_tried(store)
            await asyncio.to_thread(store.kill)
            await asyncio.to_thread(store.start)
    assert tried > 20
    await eventually(lambda: is_reached(line), within=20)
    with store.client() as client:
        assert list(client.scan_iter("*:x:gate")) == []
    await assert_sound(line)
    batches.assert_whole(await drained(line))
    figure("store killed 3 times: batches", f"{len(batches.accepted)} accepted, {len(batches.unknown)} not known")


async def is_reached(line: Line) -> bool:
    return (await line.counts()).accepted > 0


async def test_a_batch_is_answered_when_replicas_have_it(
    replicated_pair: tuple[StoreServer, StoreServer], serve: Serve, open_line: Open
) -> None:
    primary, replica = replicated_pair
    line = await open_line(await serve(primary.url, HEADWAY_DURABILITY="replicated"), "jobs")
    await line.create()
    await line.put(b"the script is known")
    tried = gates_tried(primary)
    await line.put(*MANY)
    assert gates_tried(primary) == tried + 1
    with replica.client() as client:
        assert client.llen("__pressure__:jobs") == 1 + len(MANY)
    replica.pause()
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE) as said:
        await line.put(*MANY)
    assert said.metadata["cause"] == "REPLICAS"
    replica.resume()
    assert (await line.counts()).accepted == 1 + 2 * len(MANY)
