"""A queue whose store steps are called one at a time, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
import redis

from harness import StoreServer
from headwayd.domain.bare import BareMessages
from headwayd.domain.model import Counts, DelayOrder, Delivery, GetOrder, NewMessage, OnDuplicate, Policy, Settlement
from headwayd.engine.ports import PutStep
from headwayd.store import keys, scripts
from headwayd.store.redis_store import RedisStore

PREFIX = "exact"
CLOCK_KEY = f"{PREFIX}-clock"
BUDGET_S = 5.0
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FAR = "local MOST_PASSED, NODE_BYTES = 100000, 8192\n"  # as lua/include/reach.lua has it


class Desk:
    """One queue and its clock."""

    def __init__(self, store: RedisStore, raw: redis.Redis, name: str) -> None:
        self.store = store
        self.raw = raw
        self.name = name
        self.at(0)

    def at(self, ms: int) -> None:
        """Sets the clock to so many ms after the start."""
        self.now_ms = START_MS + ms
        self.raw.set(CLOCK_KEY, self.now_ms)

    def key(self, name: str) -> str:
        """A key of this queue."""
        return keys.base_key(PREFIX, self.name) + (keys.PRESSURE | keys.OWN)[name]

    async def create(self, **policy: Any) -> None:
        await self.store.create(self.name, Policy(**policy), budget_s=BUDGET_S)

    async def put(
        self,
        *payloads: bytes,
        delay_ms: int = 0,
        ids: Sequence[str] = (),
        waiter: str = "",
        line_ticket: int = 0,
        on_duplicate: OnDuplicate = OnDuplicate.REJECT,
        time_to_live_ms: int = 0,
        all_or_nothing: bool = False,
    ) -> PutStep:
        given = list(ids) or [""] * len(payloads)
        messages = [
            NewMessage(payload=p, id=i, delay_ms=delay_ms, time_to_live_ms=time_to_live_ms)
            for p, i in zip(payloads, given, strict=True)
        ]
        return await self.store.put(
            self.name,
            messages,
            producer="p",
            waiter=waiter,
            line_ticket=line_ticket,
            on_duplicate=on_duplicate,
            all_or_nothing=all_or_nothing,
            budget_s=BUDGET_S,
        )

    async def put_many(self, payloads: Sequence[bytes]) -> PutStep:
        """A batch of nothing but payloads."""
        return await self.store.put(
            self.name,
            BareMessages(payloads),
            producer="p",
            waiter="",
            line_ticket=0,
            on_duplicate=OnDuplicate.REJECT,
            all_or_nothing=False,
            budget_s=BUDGET_S,
        )

    async def take(self, count: int = 1, *, lease_ms: int = 1_000, attempt_id: str = "") -> list[Delivery]:
        order = GetOrder(queue=self.name, max_messages=count, lease_ms=lease_ms, max_bytes=10**7, attempt_id=attempt_id)
        return list((await self.store.get(order, budget_s=BUDGET_S)).deliveries)

    async def take_one(self, *, lease_ms: int = 1_000) -> Delivery:
        [delivery] = await self.take(lease_ms=lease_ms)
        return delivery

    async def ack(self, *leases: str) -> list[str]:
        return [result.settled.name for result in await self.store.ack(self.name, leases, budget_s=BUDGET_S)]

    async def give_back(self, *leases: str, delay_ms: int | None = None) -> list[Settlement]:
        order = DelayOrder(queue=self.name, leases=leases, delay_ms=delay_ms)
        return list(await self.store.delay(order, budget_s=BUDGET_S))

    async def withdraw(self, *names: str) -> list[str]:
        """ "" for each that was withdrawn, else why not: the reason, or the outcome of what is finished."""
        outcomes = await self.store.withdraw(self.name, names, budget_s=BUDGET_S)
        return [o.error.metadata.get("outcome", o.error.reason.name) if o.error else "" for o in outcomes]

    async def is_sound(self) -> bool:
        """Asserts that a check of the queue finds nothing."""
        checked = await self.store.check(self.name, max_entries=10**6, budget_s=BUDGET_S)
        assert checked.findings == []
        return True

    def foreign_get(self) -> bytes | None:
        """Takes the head as a stock client does, and counts it."""
        payload = self.raw.rpop(self.key("q"))
        assert payload is None or isinstance(payload, bytes)
        self.raw.incr(self.key("consumed_messages"))
        self.raw.incrby(self.key("consumed_bytes"), len(payload or b""))
        return payload

    def commands(self) -> int:
        """How many commands the store has run so far, those of scripts included, INFO not."""
        return sum(row["calls"] for name, row in self.raw.info("commandstats").items() if name != "cmdstat_info")

    async def sweep(self) -> None:
        await self.store.sweep(self.name, budget_s=BUDGET_S)

    async def counts(self) -> Counts:
        return (await self.store.describe(self.name, budget_s=BUDGET_S)).counts


@cache
def _built(replaced: tuple[tuple[str, str], ...]) -> dict[str, scripts.Script]:
    includes = dict(replaced) | {"time": f"local NOW = tonumber(redis.call('GET', '{CLOCK_KEY}'))\n"}
    return {name: scripts.build(name, includes) for name in scripts.NAMES}


def store_of(store_server: StoreServer, *, url: str = "", **replaced: str) -> RedisStore:
    """A store for desks, by another URL if one is given; `replaced` are includes of the scripts, beside the clock."""
    return RedisStore(
        url or store_server.url,
        prefix=PREFIX,
        process="headway/exact/1/0",
        embedded=False,
        call_timeout=timedelta(seconds=5),
        scripts=_built(tuple(replaced.items())),
    )


def queue_of(request: pytest.FixtureRequest) -> str:
    """A queue for a test, and another one when it is tried again: a store that stood still may not have deleted the
    first."""
    name, tries = str(request.node.originalname), getattr(request.node, "execution_count", 1)
    return name if tries == 1 else f"{name}-{tries}"


@asynccontextmanager
async def desk_at(store_server: StoreServer, name: str, *, url: str = "", **replaced: str) -> AsyncIterator[Desk]:
    """A desk, one at a time on a store; `url` and `replaced` as in `store_of`."""
    store = store_of(store_server, url=url, **replaced)
    with store_server.client() as raw:
        yield Desk(store, raw, name)
        try:
            await store.delete(name, budget_s=BUDGET_S)
            assert list(raw.scan_iter(f"{keys.base_key(PREFIX, name)}:*")) == []
        finally:  # a test that failed may have left a role taken, and whoever tries it again makes the queue anew
            raw.delete(CLOCK_KEY, *raw.scan_iter(f"{keys.base_key(PREFIX, name)}:*"))
            await store.close()
