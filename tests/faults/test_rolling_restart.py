"""Services restarted one after the other under load: no call fails after the client's own repeats; no lease stays.

`make rolling` restarts each of the three ten times; every day it is less.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import headway
from faults.rolling import Fleet, Load
from harness import ServiceProcess, StoreServer, eventually

pytestmark = pytest.mark.any_store

ROUNDS = int(os.environ.get("HEADWAY_ROLLING_ROUNDS", "2"))
SERVICES = 3


async def test_a_rolling_restart_fails_no_call_and_leaves_no_lease_behind(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], figure: Callable[[str, str], None]
) -> None:
    fleet = Fleet(make_service, SERVICES, HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_DRAIN_DELAY="200ms")
    await fleet.start()
    async with headway.connect(fleet.target) as calls, headway.connect(fleet.target) as streams:
        queue = calls.queue("jobs")
        await queue.create(bound=500)
        load = Load(queue, streams.queue("jobs"))
        async with load.running():
            for _ in range(ROUNDS):
                for address in fleet.addresses:
                    before = len(load.put)
                    await fleet.restart(address)
                    await eventually(lambda: len(load.put) > before + 50)  # noqa: B023 - awaited in this turn
        assert load.failures == []

        async def all_is_settled() -> bool:
            counts = (await queue.describe()).counts
            return (counts.length, counts.leased, counts.delayed, counts.dead) == (0, 0, 0, 0)

        await eventually(all_is_settled)
        counts = (await queue.describe()).counts
        assert counts.acked == len(load.put)
        assert set(load.worked) == load.put
        assert set(load.attempts) == {1}  # what was given back cost nothing
        assert not (await queue.check()).findings
    again = sum(load.worked.values()) - len(load.worked)
    figure("rolling restart", f"{ROUNDS * SERVICES} restarts, {len(load.put)} messages, {again} worked on again")
