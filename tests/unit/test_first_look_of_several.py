"""Nothing is written to one of a cluster's primaries before that one has said what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.crc import key_slot

from harness import eventually
from headwayd.domain.errors import NotDurable, StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.store import facts
from headwayd.store.address import Host
from headwayd.store.cluster import Cluster
from headwayd.store.durability import ALWAYS, Demand
from headwayd.store.link import Link
from headwayd.store.redis_store import RedisStore
from headwayd.store.trouble import Unlooked
from unit.stores import store_of_nobody

BUDGET_S = 5.0
ONE, OTHER, NEXT = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)
SLOTS = 16384
JOBS = key_slot(b"{jobs}")


class Nodes:
    """A cluster in which one primary has the slot of `jobs`, and another one all others. What a primary says of itself
    when it is looked at lies in `says`; one of which nothing lies there is silent."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.says: dict[Host, str] = {}
        self.looked_at: list[Host] = []
        self.written: list[Host] = []

    @property
    def cluster(self) -> Cluster:
        servers = self.store._servers
        assert isinstance(servers, Cluster)
        return servers

    def take(self, *, jobs: Host, others: Host) -> None:
        """The map is this now."""
        self.cluster._take(dict.fromkeys(range(SLOTS), others) | {JOBS: jobs})

    def host_of(self, link: Link) -> Host:
        return next(host for host, each in self.cluster._links.items() if each is link)

    async def facts_of(self, link: Link, _demand: Demand) -> StoreFacts:
        host = self.host_of(link)
        self.looked_at.append(host)
        await eventually(lambda: host in self.says, within=BUDGET_S)
        return StoreFacts(is_reachable=True, prefix="p", durability=ALWAYS, refusal=self.says[host])

    async def put(self, queue: str, budget_s: float = BUDGET_S) -> None:
        await self.store._ask("put", queue, budget_s=budget_s)


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    store = store_of_nobody(ALWAYS, scheme="redis+cluster", call_timeout_s=0.2)
    made = Nodes(store)

    async def call(link: Link, _order: Any, *, budget_s: float) -> list[Any]:
        if not link.may_write():
            raise Unlooked
        made.written.append(made.host_of(link))
        return []

    monkeypatch.setattr(Link, "call", call)
    monkeypatch.setattr(facts, "_ask_one", made.facts_of)
    yield made
    await store.close()


async def test_a_primary_that_was_silent_during_the_look_is_not_written_to_on_the_word_of_the_others(
    nodes: Nodes,
) -> None:
    nodes.says[OTHER] = ""
    nodes.take(jobs=ONE, others=OTHER)
    await nodes.put("mails")
    with pytest.raises(StoreUnavailable):
        await nodes.put("jobs", budget_s=0.5)
    assert nodes.written == [OTHER]
    nodes.says[ONE] = "too little"
    with pytest.raises(NotDurable, match="too little"):
        await nodes.put("jobs")
    assert nodes.written == [OTHER]


async def test_whoever_waits_for_a_silent_primary_goes_on_when_it_has_said_that_it_keeps_enough(nodes: Nodes) -> None:
    nodes.says[OTHER] = ""
    nodes.take(jobs=ONE, others=OTHER)
    writing = asyncio.create_task(nodes.put("jobs"))
    await eventually(lambda: nodes.looked_at.count(ONE) >= 2)
    assert nodes.written == []
    nodes.says[ONE] = ""
    await writing
    assert nodes.written == [ONE]


async def test_the_others_are_written_to_while_a_primary_that_took_over_says_nothing(nodes: Nodes) -> None:
    nodes.says |= {ONE: "", OTHER: ""}
    nodes.take(jobs=ONE, others=OTHER)
    await nodes.put("jobs")
    nodes.take(jobs=NEXT, others=OTHER)
    await nodes.put("mails", budget_s=0.0)  # without a look
    writing = asyncio.create_task(nodes.put("jobs"))
    await eventually(lambda: NEXT in nodes.looked_at)
    assert nodes.written == [ONE, OTHER]
    nodes.says[NEXT] = ""
    await writing
    assert nodes.written == [ONE, OTHER, NEXT]


async def test_a_primary_that_kept_too_little_and_is_silent_now_is_not_written_to(nodes: Nodes) -> None:
    nodes.says |= {ONE: "too little", OTHER: ""}
    nodes.take(jobs=ONE, others=OTHER)
    with pytest.raises(NotDurable, match="too little"):
        await nodes.put("jobs")
    del nodes.says[ONE]
    await nodes.store.probe(budget_s=0.1)
    await nodes.put("mails")
    with pytest.raises(StoreUnavailable):
        await nodes.put("jobs", budget_s=0.5)
    assert nodes.written == [OTHER]
