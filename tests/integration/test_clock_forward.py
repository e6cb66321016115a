"""When the store's clock has gone forward, or this process's stood still, what is due by now is done soon, whether or
not anybody calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from harness import eventually
from headwayd.engine.ports import Store
from headwayd.engine.readiness import Readiness
from headwayd.engine.sweeper import Sweeper
from headwayd.engine.tasks import Tasks
from headwayd.store import asking
from headwayd.store.connections import info_of
from integration.desk import HOUR_MS, Desk


@pytest.fixture
async def sweeper(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sweeper]:
    """Of the desk's store, which tells the desk's time of itself, too. It is looked at all the time. A
    message is leased and another delayed for an hour, and nobody calls any more."""

    def with_the_time(text: bytes) -> dict[str, str]:
        return info_of(text) | {"server_time_usec": str(desk.now_ms * 1_000)}

    monkeypatch.setattr("headwayd.store.facts.info_of", with_the_time)
    monkeypatch.setattr(asking, "_LOOK_EVERY_S", 0.0)
    tasks, store = Tasks(), cast(Store, desk.store)
    sweeper, readiness = Sweeper(store, tasks.spawn), Readiness(store, every_s=0.02)
    await desk.store.start()
    await desk.create()
    await desk.put(b"leased")
    await desk.take_one(lease_ms=HOUR_MS)
    await desk.put(b"delayed", delay_ms=HOUR_MS)
    store.on_due(sweeper.note)
    store.on_reconnect(sweeper.list_anew)
    tasks.spawn(readiness.run(), "readiness")
    tasks.spawn(sweeper.run(), "sweeper")
    yield sweeper
    sweeper.stop()
    readiness.stop()
    await tasks.close()


async def test_what_is_due_by_the_new_time_does_not_wait_for_the_old(desk: Desk, sweeper: Sweeper) -> None:
    in_half_an_hour = asyncio.get_running_loop().time() + HOUR_MS / 2_000
    # It has listed the queues, and visited this one: it knows of the hour.
    await eventually(lambda: not sweeper._visiting and (sweeper._due.at(desk.name) or 0.0) > in_half_an_hour)
    desk.at(HOUR_MS)
    await eventually(lambda: desk.raw.llen(desk.key("q")) == 2)
