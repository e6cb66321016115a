"""The store's name comes to lead to another server, and the one before lives on as its replica and closes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from faults.conftest import Open, Serve
from faults.moments import works
from harness import FaultProxy, StoreServer, eventually
from headwayd.store.redis_store import RedisStore
from wire.calls import ACKED
from wire.flows import Consuming, ends

WITHIN_S = 20.0  # for servers that copy each other
BUDGET_S = 5.0
PROCESS = "headway/moves/1/0"


class Pair:
    """A primary, to which the name leads, and its replica."""

    def __init__(self, primary: StoreServer, replica: StoreServer, name: FaultProxy) -> None:
        self.primary, self.replica, self.name = primary, replica, name

    async def copy(self) -> None:
        """Returns when the replica has all."""
        with self.primary.client() as first, self.replica.client() as second:
            second.replicaof("127.0.0.1", str(self.primary.port))

            def has_all() -> bool:
                told, offset = second.info("replication"), first.info("replication")["master_repl_offset"]
                return bool(told.get("master_link_status") == "up" and told.get("slave_repl_offset") == offset)

            await eventually(has_all, within=WITHIN_S)

    async def change_places(self) -> None:
        """The replica becomes the primary, and the name leads to it; every connection stands."""
        await self.copy()
        self.primary, self.replica = self.replica, self.primary
        self.name.upstream = self.primary.port
        with self.primary.client() as first, self.replica.client() as second:
            first.replicaof("NO", "ONE")
            second.replicaof("127.0.0.1", str(self.primary.port))


@pytest.fixture
async def pair(make_store_server: Callable[..., StoreServer]) -> AsyncIterator[Pair]:
    primary, replica = (make_store_server("--repl-diskless-sync-delay", "0") for _ in range(2))
    async with FaultProxy(primary.port) as name:
        made = Pair(primary, replica, name)
        await made.copy()
        yield made


def listeners(server: StoreServer) -> list[str]:
    """The processes that listen to it."""
    with server.client() as client:
        return [bytes(channel).partition(b":x:wake:")[2].decode() for channel in client.pubsub_channels("*:x:wake:*")]


async def test_who_listened_to_the_one_before_listens_to_the_other_and_keeps_what_it_holds(
    pair: Pair, serve: Serve, open_line: Open
) -> None:
    line = await open_line(await serve(pair.name.url), "jobs")
    await line.create()
    await line.put(b"held")
    async with Consuming(line, 1) as consuming:
        [lease] = await consuming.tokens(1)
        [process] = listeners(pair.primary)
        await pair.change_places()
        await eventually(lambda: works(line), within=WITHIN_S)
        await eventually(lambda: listeners(pair.primary) == [process], within=WITHIN_S)
        await eventually(lambda: listeners(pair.replica) == [], within=WITHIN_S)
        await consuming.ack(lease)
        assert ends(await consuming.results(1)) == [ACKED]
        await consuming.taken(2)


@pytest.fixture
async def store(pair: Pair) -> AsyncIterator[RedisStore]:
    """Where the name leads to, and heard there. Nothing is written by it."""
    store = RedisStore(
        pair.name.url, prefix="p", process=PROCESS, embedded=False, call_timeout=timedelta(seconds=BUDGET_S)
    )
    try:
        await store.start()
        await eventually(lambda: is_heard(store, pair), within=WITHIN_S)
        yield store
    finally:
        await store.close()


async def is_heard(store: RedisStore, pair: Pair) -> bool:
    """Whether it asks the primary, and listens there and nowhere else."""
    return (
        PROCESS in await store.processes(budget_s=BUDGET_S)
        and listeners(pair.primary) == [PROCESS]
        and listeners(pair.replica) == []
    )


async def test_who_writes_nothing_goes_over_too(pair: Pair, store: RedisStore) -> None:
    """No refusal tells that it must, and nobody has ended its connections."""
    await pair.change_places()
    await eventually(lambda: is_heard(store, pair), within=WITHIN_S)


async def test_where_both_take_writes_it_goes_over_once_what_listens_has(pair: Pair, store: RedisStore) -> None:
    """Else it would listen to the one, ask the other, and connect anew for ever."""
    with pair.replica.client() as client:
        client.replicaof("NO", "ONE")
    pair.primary, pair.replica = pair.replica, pair.primary
    pair.name.upstream = pair.primary.port
    with pair.replica.client() as before:
        before.client_kill_filter(_type="pubsub")
    await eventually(lambda: is_heard(store, pair), within=WITHIN_S)
