"""Nothing is written to a store that has not said what it keeps, nor on the word of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harness import eventually
from headwayd.domain.errors import NotDurable, StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.store import asking, sentinels
from headwayd.store.address import parse_address
from headwayd.store.durability import ALWAYS, AUTO, MEMORY
from headwayd.store.link import Link
from headwayd.store.redis_store import RedisStore
from headwayd.store.sentinels import SentinelSource
from headwayd.store.trouble import Unlooked
from unit.stores import store_of_nobody

BUDGET_S = 5.0


class Stores:
    """What the store says of itself, one look after another: each waits for an answer of the test's."""

    def __init__(self) -> None:
        self.looks: list[asyncio.Future[StoreFacts]] = []

    async def ask(self, *_: object, **__: object) -> StoreFacts:
        self.looks.append(asyncio.get_running_loop().create_future())
        return await self.looks[-1]

    async def look(self, number: int) -> asyncio.Future[StoreFacts]:
        """The look of this number, from 1, once it has begun."""
        await eventually(lambda: len(self.looks) >= number)
        return self.looks[number - 1]


def saying(refusal: str) -> StoreFacts:
    return StoreFacts(is_reachable=True, prefix="p", refusal=refusal)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    made = Stores()
    monkeypatch.setattr(asking, "ask_facts", made.ask)
    return made


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Asked]]:
    made: list[RedisStore] = []

    def make_one(profile: str) -> Asked:
        store = store_of_nobody(profile)
        made.append(store)
        return Asked(store, monkeypatch)

    yield make_one
    for store in made:
        await store.close()


class Asked:
    """A store, and the scripts that went to it."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.scripts: list[str] = []
        self.budgets: list[float] = []
        self.is_changing = False  # to another store, while the next script is on its way
        monkeypatch.setattr(store._servers, "call", self._call)

    async def _call(self, order: Any, *, budget_s: float) -> list[Any]:
        self.budgets.append(budget_s)
        if self.is_changing:
            self.is_changing = False
            self.change()
            raise Unlooked
        self.scripts.append(order.script.name)
        return []

    async def ask(self, script: str, budget_s: float = BUDGET_S) -> None:
        await self.store._ask(script, "jobs", budget_s=budget_s)

    def change(self) -> None:
        """The store is another one."""
        self.store._servers.on_other()


async def test_many_who_write_first_look_once_and_then_go_on(stores: Stores, make: Callable[[str], Asked]) -> None:
    one = make(ALWAYS)
    writing = [asyncio.create_task(one.ask("put")) for _ in range(3)]
    look = await stores.look(1)
    await one.ask("describe")  # reading waits for nothing
    assert one.scripts == ["describe"]
    look.set_result(saying(""))
    await asyncio.gather(*writing)
    await one.ask("put")
    assert one.scripts == ["describe", *["put"] * 4]
    assert len(stores.looks) == 1
    assert all(0 < budget_s <= BUDGET_S for budget_s in one.budgets)


async def test_who_writes_first_is_refused_by_a_store_that_keeps_less(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    writing = asyncio.create_task(one.ask("put"))
    (await stores.look(1)).set_result(saying("too little"))
    with pytest.raises(NotDurable, match="too little"):
        await writing
    with pytest.raises(NotDurable, match="too little"):
        await one.ask("put")
    assert (one.scripts, len(stores.looks)) == ([], 1)


async def test_who_writes_first_to_a_store_that_is_away_is_told_and_the_next_looks_again(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    writing = asyncio.create_task(one.ask("put"))
    (await stores.look(1)).set_exception(StoreUnavailable("away", metadata={"cause": "REFUSED"}))
    with pytest.raises(StoreUnavailable, match="away") as caught:
        await writing
    assert caught.value.metadata == {"cause": "REFUSED"}
    assert not isinstance(caught.value, NotDurable)
    writing = asyncio.create_task(one.ask("put"))
    (await stores.look(2)).set_result(saying(""))
    await writing
    assert one.scripts == ["put"]


async def test_who_writes_first_waits_no_longer_than_its_budget(stores: Stores, make: Callable[[str], Asked]) -> None:
    one = make(ALWAYS)
    with pytest.raises(StoreUnavailable) as caught:
        await one.ask("put", budget_s=0.05)
    assert caught.value.metadata == {"cause": "SILENT"}
    assert one.scripts == []


@pytest.mark.parametrize("profile", [AUTO, MEMORY])
async def test_nobody_looks_first_where_nothing_is_demanded(
    stores: Stores, make: Callable[[str], Asked], profile: str
) -> None:
    one = make(profile)
    await one.ask("put")
    assert (one.scripts, stores.looks) == (["put"], [])


async def test_a_store_that_became_another_one_during_a_look_is_looked_at_again(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    one.change()
    first = await stores.look(1)
    one.change()
    one.change()
    first.set_result(saying(""))  # of the one before
    (await stores.look(2)).set_result(saying("too little"))

    async def is_refused() -> bool:
        try:
            await one.ask("put")
        except NotDurable:
            return True
        return False

    await eventually(is_refused)
    assert len(stores.looks) == 2


async def test_nothing_is_written_to_another_store_on_the_word_of_the_one_before(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    writing = asyncio.create_task(one.ask("put"))
    (await stores.look(1)).set_result(saying(""))
    await writing
    one.change()
    writing = asyncio.create_task(one.ask("put"))
    look = await stores.look(2)
    await one.ask("describe")
    assert one.scripts == ["put", "describe"]
    look.set_exception(StoreUnavailable("away", metadata={"cause": "SILENT"}))
    with pytest.raises(StoreUnavailable, match="away"):
        await writing
    writing = asyncio.create_task(one.ask("put"))  # and a look that failed is no word of the new one's
    (await stores.look(3)).set_result(saying("too little"))
    with pytest.raises(NotDurable, match="too little"):
        await writing
    assert one.scripts == ["put", "describe"]


async def test_what_is_on_its_way_when_the_store_becomes_another_one_waits_for_its_word(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    writing = asyncio.create_task(one.ask("put"))
    one.is_changing = True
    (await stores.look(1)).set_result(saying(""))
    look = await stores.look(2)
    assert (one.scripts, writing.done()) == ([], False)
    look.set_result(saying(""))
    await writing
    assert one.scripts == ["put"]
    assert one.budgets[1] < one.budgets[0] <= BUDGET_S


async def test_the_word_of_the_store_before_counts_no_more_though_it_comes_late(
    stores: Stores, make: Callable[[str], Asked]
) -> None:
    one = make(ALWAYS)
    pinging = asyncio.create_task(one.store.ping(budget_s=BUDGET_S))
    late = await stores.look(1)
    one.change()
    look = await stores.look(2)
    late.set_result(saying(""))
    with pytest.raises(NotDurable):
        await pinging
    writing = asyncio.create_task(one.ask("put"))
    look.set_result(saying("too little"))
    with pytest.raises(NotDurable, match="too little"):
        await writing
    assert one.scripts == []


@pytest.mark.parametrize("profile", [AUTO, MEMORY])
async def test_where_nothing_is_demanded_nobody_waits_for_the_word_of_another_store(
    stores: Stores, make: Callable[[str], Asked], profile: str
) -> None:
    one = make(profile)
    one.change()
    await one.ask("put")
    assert one.scripts == ["put"]


async def test_a_sign_of_life_counts_whatever_becomes_of_the_look_beside_it(
    stores: Stores, make: Callable[[str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look asks for more than one answer, and fails sooner where these are slow."""

    async def command(_link: Link, *words: object) -> bytes:
        assert words == ("PING",)
        return b"PONG"

    monkeypatch.setattr(Link, "command", command)
    one = make(AUTO)
    async with asyncio.timeout(BUDGET_S):
        await one.store.ping(budget_s=BUDGET_S)
    (await stores.look(1)).set_exception(StoreUnavailable("slow", metadata={"cause": "SILENT"}))
    await eventually(lambda: one.store._looking is not None and one.store._looking.done())
    async with asyncio.timeout(BUDGET_S):
        await one.store.ping(budget_s=BUDGET_S)
    (await stores.look(2)).set_result(saying(""))


async def test_who_opens_a_connection_to_another_primary_tells_that_it_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the connection is used, though no Sentinel may have told of a switch yet."""
    source = SentinelSource(parse_address("redis+sentinel://127.0.0.1:1/queues/0"), {}, call_timeout_s=1)
    primaries, opened, others = iter(("one", "one", "other", "other")), [], []

    async def primary() -> tuple[str, int]:
        return next(primaries), 6379

    async def connection(options: dict[str, Any]) -> object:
        opened.append(options["host"])
        return object()

    async def role(*_: object) -> list[bytes]:
        return [b"master"]

    monkeypatch.setattr(source, "_primary", primary)
    monkeypatch.setattr(source, "_open", connection)
    monkeypatch.setattr(sentinels, "ask", role)
    source.on_other = lambda: others.append(len(opened))
    for _ in range(4):
        await source.open()
    assert (opened, others) == (["one", "one", "other", "other"], [3])
    await source.close()
