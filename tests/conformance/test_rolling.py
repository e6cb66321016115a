"""Services restarted one after the other under the load of a client: its calls do not fail after its own repeats.

`make rolling` does so with every language, and more often; every day it is Go's turn. Python's is in tests/faults, too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conformance.driving import DriverProcess, RefusedByService
from conformance.languages import BUILD_S, LANGUAGES
from conformance.matching import Mismatch, encoded
from faults.rolling import Fleet
from harness import ServiceProcess, StoreServer, eventually

pytestmark = [pytest.mark.any_store, pytest.mark.long, pytest.mark.timeout(3 * BUILD_S)]

ROUNDS = int(os.environ.get("HEADWAY_ROLLING_ROUNDS", "1"))
CLIENTS = list(LANGUAGES) if "HEADWAY_ROLLING_ROUNDS" in os.environ else ["go"]
SERVICES = 3
PUTTERS = GETTERS = 4
WAIT_MS = 1000
LEASE_MS = 3_600_000  # longer than any test: what lapses cannot hide what was left behind


class Load:
    """Puts, looks, leases and works by a client's layer, over and over. What fails is noted, and not repeated here."""

    def __init__(self, driver: DriverProcess, queue: str, addresses: list[str]) -> None:
        self._driver = driver
        self._queue = queue
        self._addresses = addresses
        self._numbers = itertools.count()
        self.put: set[str] = set()
        self.worked: Counter[str] = Counter()
        self.failures: list[str] = []
        self._is_over = asyncio.Event()  # nothing more is put
        self._is_drained = asyncio.Event()  # and nothing is left to work on

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One operation of the driver."""
        return await self._driver.ask(op, client=self._queue, queue=self._queue, **fields).answer()

    async def call(self, rpc: str, **request: Any) -> dict[str, Any]:
        """One call of the layer."""
        answer = await self.ask("call", rpc=rpc, request={"queue": self._queue, **request})
        response: dict[str, Any] = answer["response"]
        return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block lasts there is load; behind it everything that was put has been worked on."""
        await self.ask("connect", addresses=self._addresses, options={})
        await self.call("Create", policy={"bound": "500"})
        await self.ask("work", handle="w", concurrency=2, lease_ms=LEASE_MS)
        putting = [asyncio.create_task(self._puts()) for _ in range(PUTTERS)]
        putting.append(asyncio.create_task(self._looks()))
        getting = [asyncio.create_task(self._leases(f"g{number}")) for number in range(GETTERS)]
        working = asyncio.create_task(self._works())
        try:
            yield
            self._is_over.set()
            await asyncio.gather(*putting)
            await eventually(lambda: self.failures or len(self.worked) >= len(self.put), within=30)
            self._is_drained.set()
            await asyncio.gather(*getting)
            await self.ask("work_stop", handle="w")
            assert (await self._driver.event("ended", "w"))["error"] is None
        finally:
            for task in (*putting, *getting, working):
                task.cancel()
            await asyncio.wait((*putting, *getting, working))

    async def leave(self) -> None:
        """Ends the client's connection."""
        await self.ask("disconnect")

    async def _noting(self, what: str, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (RefusedByService, Mismatch) as error:
            self.failures.append(f"{what}: {error}")
            return None

    async def _puts(self) -> None:
        while not self._is_over.is_set():
            name = f"m{next(self._numbers)}"
            message = {"id": name, "payload": encoded(name.encode())}
            if await self._noting(f"put {name}", self.ask("put", messages=[message], wait_ms=WAIT_MS)):
                self.put.add(name)
            await asyncio.sleep(0.002)

    async def _looks(self) -> None:
        while not self._is_over.is_set():
            await self._noting("describe", self.call("Describe"))
            await asyncio.sleep(0.002)

    async def _leases(self, handle: str) -> None:
        while not self._is_drained.is_set():
            got = await self._noting("lease", self.ask("lease", handle=handle, wait_ms=WAIT_MS, lease_ms=LEASE_MS))
            if got is not None and "message" in got:
                await self._noting("ack", self.ask("lease_end", handle=handle, how="return"))
                self.worked[got["message"]["id"]] += 1

    async def _works(self) -> None:
        """What the layer's worker handles."""
        while True:
            try:
                event = await self._driver.event("handling", "w")
            except Mismatch:  # none came in its time
                continue
            await self._noting("finish", self.ask("finish", handle="w", lease=event["lease"], how="return"))
            self.worked[event["message"]["id"]] += 1


@pytest.mark.parametrize("language", CLIENTS)
async def test_a_rolling_restart_fails_no_call_of_a_client(
    language: str,
    fresh_store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    driver_of: Callable[[str], Awaitable[DriverProcess]],
    figure: Callable[[str, str], None],
) -> None:
    driver = await driver_of(language)
    fleet = Fleet(make_service, SERVICES, HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_DRAIN_DELAY="200ms")
    await fleet.start()
    load = Load(driver, f"rolling-{uuid.uuid4().hex[:8]}", fleet.addresses)
    try:
        async with load.running():
            for _ in range(ROUNDS):
                for address in fleet.addresses:
                    before = len(load.put)
                    await fleet.restart(address)
                    await eventually(lambda: len(load.put) > before + 50, within=30)  # noqa: B023 - awaited in this turn
        figure(f"rolling restart, {language}", f"{ROUNDS * SERVICES} restarts, {len(load.put)} messages")
        assert load.failures == []
        assert set(load.worked) == load.put

        async def all_is_settled() -> bool:
            counts = (await load.call("Describe"))["queue"].get("counts", {})
            left = sum(int(counts.get(name, 0)) for name in ("length", "leased", "delayed", "dead"))
            return (left, int(counts.get("acked", 0))) == (0, len(load.put))

        await eventually(all_is_settled)
    finally:
        await load.leave()
