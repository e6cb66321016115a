"""A queue is deleted and made anew while a service looks away: who waited for the old one is not served by the new."""

from __future__ import annotations

import asyncio
import signal

from faults.conftest import Open, Serve
from harness import StoreServer, eventually, refused
from headway.v1 import queue_service_pb2
from wire.calls import Line, payloads
from wire.conditions import consumers_wait, producers_wait
from wire.flows import Consuming
from wire.operators import assert_sound
from wire.streams import Standing

WAIT_MS = 60_000


async def test_who_waited_is_told_that_it_was_deleted_and_the_new_one_knows_nobody(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    line = await open_line(await serve(fresh_store_server.url), "jobs")
    away = await serve(fresh_store_server.url)
    there = await open_line(away, "jobs")
    full, full_there = Line(line.stub, "full", line.admin), Line(there.stub, "full")
    await line.create()
    await full.create(bound=1)
    await full.put(b"1")
    putting = asyncio.create_task(full_there.put(b"2", wait_ms=WAIT_MS))
    getting = asyncio.create_task(there.get(wait_ms=WAIT_MS))
    async with Standing(there) as standing, Consuming(there, 1) as consuming:
        await eventually(lambda: consumers_wait(line, 3))
        await eventually(lambda: producers_wait(full, 1))
        away.signal(signal.SIGSTOP)
        try:
            for one in (line, full):
                await one.delete()
                await one.create()
                await one.put(b"new")
        finally:
            away.signal(signal.SIGCONT)
        told = await standing.until(lambda told: told.HasField("finished"))
        assert told.finished.outcome == queue_service_pb2.OUTCOME_DELETED
        with refused("QUEUE_DELETED"):
            await putting
        with refused("QUEUE_DELETED"):
            await getting
        with refused("QUEUE_DELETED"):
            await consuming.ended()
    await eventually(lambda: consumers_wait(line, 0))
    await eventually(lambda: producers_wait(full, 0))
    for one in (line, full):
        assert payloads(await one.take(1)) == [b"new"]
        counts = await one.counts()
        assert (counts.accepted, counts.length, counts.leased) == (1, 0, 1)
        await assert_sound(one)
