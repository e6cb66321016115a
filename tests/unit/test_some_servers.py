"""What is asked of several servers, and of Sentinels and nodes that do not agree."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions as redis_errors

from headwayd.domain import kept
from headwayd.domain.errors import StoreUnavailable
from headwayd.store import cluster, sentinels
from headwayd.store.address import parse_address
from headwayd.store.cluster import Cluster
from headwayd.store.connections import ConnectionSource
from headwayd.store.hint_wire import HintWire
from headwayd.store.redis_store import RedisStore
from headwayd.store.sentinels import SentinelSource, SwitchListener
from unit.stores import store_of_nobody

BUDGET_S = 5.0
HERE = ("127.0.0.1", 1)


class Node:
    """A server that tells its keys, and what it takes for the state of its cluster."""

    def __init__(self, *keys: str, epoch: int = 1, state: str = "ok") -> None:
        self.keys = [key.encode() for key in keys]
        self.epoch, self.state = epoch, state
        self.is_away = False

    async def command(self, *words: object) -> Any:
        if self.is_away:
            raise StoreUnavailable("away", metadata={"cause": "REFUSED"})
        if words[0] == "SCAN":
            return b"0", self.keys
        if words[1] == "INFO":
            return f"cluster_state:{self.state}\r\ncluster_current_epoch:{self.epoch}\r\n".encode()
        return []

    async def commands(self, *commands: tuple[object, ...]) -> list[Any]:
        return [await self.command(*words) for words in commands]


@pytest.fixture
async def store() -> AsyncIterator[RedisStore]:
    made = store_of_nobody()
    yield made
    await made.close()


async def test_names_on_servers_that_answer_are_told_though_one_does_not(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, there = Node("p:lost:x:meta"), Node("p:mail:x:meta", "p:jobs:x:meta")
    monkeypatch.setattr(store, "_servers", SimpleNamespace(links=[away, there], is_cluster=False))
    assert await store.names_with_own_keys(budget_s=BUDGET_S) == (["jobs", "lost", "mail"], None)
    away.is_away = True
    names, missing = await store.names_with_own_keys(budget_s=BUDGET_S)
    assert names == ["jobs", "mail"]
    assert isinstance(missing, StoreUnavailable)
    with pytest.raises(StoreUnavailable):  # a list that some are missing from would be taken for the whole
        await store.names(budget_s=BUDGET_S)


def a_sentinel(*, epoch: int, is_down: bool = False, port: int = 7000, is_far: bool = False) -> Any:
    """What one says of the primary; a far one when the others have answered long ago."""
    state = {"ip": "127.0.0.1", "port": port, "config-epoch": epoch, "is_master": True, "num-other-sentinels": 2}
    state |= {"is_sdown": is_down, "is_odown": False, "is_disconnected": is_down}

    async def masters() -> dict[str, Any]:
        for _ in range(20 if is_far else 0):
            await asyncio.sleep(0)
        return {"queues": state}

    async def address(*_: object) -> list[bytes]:
        return [b"127.0.0.1", str(port).encode()]

    return SimpleNamespace(sentinel_masters=masters, execute_command=address)


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "second", "last"])
async def test_one_sentinel_that_alone_takes_the_primary_for_gone_is_not_believed(at: int) -> None:
    source = SentinelSource(parse_address("redis+sentinel://127.0.0.1:1/queues/0"), {}, call_timeout_s=1)
    told = [a_sentinel(epoch=3), a_sentinel(epoch=3)]
    told.insert(at, a_sentinel(epoch=3, is_down=True))
    source._sentinels.sentinels = told
    assert await source._primary() == ("127.0.0.1", 7000)
    # One that knows a later primary is, whatever the others say of the one before.
    told[at] = a_sentinel(epoch=4, port=7001)
    assert await source._primary() == ("127.0.0.1", 7001)
    told[:] = [a_sentinel(epoch=3, is_down=True)] * 3
    with pytest.raises(Exception, match="take the primary for gone"):
        await source._primary()


async def test_others_are_waited_for_while_the_primary_is_gone_for_all_who_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "_OTHERS_S", 0.0)
    source = SentinelSource(parse_address("redis+sentinel://127.0.0.1:1/queues/0"), {}, call_timeout_s=1)
    source._sentinels.sentinels = [a_sentinel(epoch=3, is_down=True), *[a_sentinel(epoch=3, is_far=True)] * 2]
    assert await source._primary() == ("127.0.0.1", 7000)
    # Where one has named a primary that lives, nobody far away is.
    source._sentinels.sentinels = [a_sentinel(epoch=3), a_sentinel(epoch=4, port=7001, is_far=True)]
    assert await source._primary() == ("127.0.0.1", 7000)


# What uvloop says to who writes on a connection that was reset.
RESET = RuntimeError("unable to perform operation on <TCPTransport closed=True reading=False>; the handler is closed")


async def test_a_sentinel_whose_connection_was_reset_is_one_that_does_not_answer() -> None:
    async def masters() -> None:
        raise RESET

    source = SentinelSource(parse_address("redis+sentinel://127.0.0.1:1/queues/0"), {}, call_timeout_s=1)
    source._sentinels.sentinels = [SimpleNamespace(sentinel_masters=masters), a_sentinel(epoch=3, is_far=True)]
    assert await source._primary() == ("127.0.0.1", 7000)
    del source._sentinels.sentinels[1]
    with pytest.raises(redis_errors.ConnectionError, match="reset"):
        await source._primary()


async def test_a_sentinel_whose_connection_was_reset_at_once_is_listened_to_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "_PAUSE_S", 0.0)
    tries, is_tried_again = 0, asyncio.Event()

    async def connect() -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            is_tried_again.set()
        raise RESET

    async def disconnect(**_: object) -> None:
        pass

    address = parse_address("redis+sentinel://127.0.0.1:1/queues/0")
    listener = SwitchListener(address, {}, call_timeout_s=1, on_switch=lambda: None)
    monkeypatch.setattr(listener, "_class", lambda **_: SimpleNamespace(connect=connect, disconnect=disconnect))
    listener.start()
    async with asyncio.timeout(BUDGET_S):
        await is_tried_again.wait()
    await listener.close()


async def test_a_defect_met_in_listening_to_a_sentinel_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinels, "_PAUSE_S", 0.0)
    tries, goes_on = 0, asyncio.Event()

    async def listen(_host: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            goes_on.set()
        raise LookupError("a defect")

    address = parse_address("redis+sentinel://127.0.0.1:1/queues/0")
    listener = SwitchListener(address, {}, call_timeout_s=1, on_switch=lambda: None)
    monkeypatch.setattr(listener, "_listen", listen)
    listener.start()
    async with asyncio.timeout(BUDGET_S):
        await goes_on.wait()
    await listener.close()


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose map was told at epoch 23. The past lasts."""
    monkeypatch.setattr(cluster, "_PAST_S", 3600.0)
    address = parse_address("redis+cluster://127.0.0.1:1")
    made = Cluster(address, call_timeout_s=2, min_replicas=0, password_file=None)
    await made._ask_map(HERE, Node(epoch=23))  # type: ignore[arg-type]
    return made


async def ask(nodes: Cluster, node: Node) -> bool:
    """Whether what the node tells is taken for the present."""
    try:
        await nodes._ask_map(HERE, node)  # type: ignore[arg-type]
    except StoreUnavailable as error:
        assert error.metadata == {"cause": "CLUSTERDOWN"}
        return False
    return True


async def test_a_cluster_made_anew_is_mapped_when_nobody_tells_of_the_old_one_any_more(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await ask(nodes, Node(epoch=3))
    monkeypatch.setattr(cluster, "_PAST_S", 0.0)
    assert not await ask(nodes, Node(epoch=3, state="fail"))
    assert await ask(nodes, Node(epoch=3))
    assert await ask(nodes, Node(epoch=3))
    assert await ask(nodes, Node(epoch=4))


async def test_who_tells_of_the_past_is_not_believed_while_others_tell_of_the_present(nodes: Cluster) -> None:
    for _ in range(2):
        assert not await ask(nodes, Node(epoch=22))
        assert nodes._past_since is not None
        assert await ask(nodes, Node(epoch=23))
        assert nodes._past_since is None


async def test_of_a_primary_that_has_gone_nothing_is_kept(nodes: Cluster) -> None:
    nodes._take({0: ("127.0.0.1", 1)})
    gone = weakref.ref(nodes.sources["127.0.0.1", 1])
    nodes._take({0: ("127.0.0.2", 1)})
    assert [*nodes.sources] == [("127.0.0.2", 1)]
    while nodes._closing:
        await asyncio.wait(set(nodes._closing))
    gc.collect()
    assert gone() is None
    await nodes.close()


async def test_a_defect_met_with_one_map_does_not_end_the_asking_for_the_next(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on = 0, asyncio.Event()

    async def renew_map(**_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            goes_on.set()
        raise LookupError("a defect")

    monkeypatch.setattr(nodes, "_renew_map", renew_map)
    await nodes.start(wait_s=0)
    async with asyncio.timeout(BUDGET_S):
        await goes_on.wait()
    await nodes.close()


class SlowToEnd:
    """Something that waits and, when it is cancelled, takes until it is cancelled once more."""

    def __init__(self) -> None:
        self.is_ending = asyncio.Event()

    async def wait(self, *_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await asyncio.Event().wait()


class Forgetful:
    """Something that waits and keeps its first cancellation to itself, as what is done in that moment may."""

    def __init__(self) -> None:
        self._count = 0

    async def wait(self, *_: object, **__: object) -> None:
        self._count += 1
        if self._count == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()


def wire() -> HintWire:
    source = ConnectionSource(parse_address("redis://127.0.0.1:1"), call_timeout_s=1)
    return HintWire(
        source, channels=(), call_timeout_s=1, on_message=lambda _channel, _content: None, on_connected=lambda: None
    )


async def is_cancelled(work: Coroutine[Any, Any, None], slow: SlowToEnd) -> bool:
    """Whether what waits for the end of something slow can itself be cancelled."""
    task = asyncio.create_task(work)
    async with asyncio.timeout(BUDGET_S):
        await slow.is_ending.wait()
        task.cancel()
        await asyncio.wait({task})
    return task.cancelled()


async def test_who_closes_a_cluster_can_be_cancelled_meanwhile(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowToEnd()
    monkeypatch.setattr(nodes, "_renew_map", slow.wait)
    await nodes.start(wait_s=0)
    await asyncio.sleep(0)
    assert await is_cancelled(nodes.close(), slow)


async def test_who_closes_what_hears_can_be_cancelled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, heard = SlowToEnd(), wire()
    monkeypatch.setattr(heard, "_listen", slow.wait)
    heard.start()
    await asyncio.sleep(0)
    assert await is_cancelled(heard.close(), slow)


@pytest.mark.parametrize("what", ["cluster", "hints", "switches"])
async def test_what_listens_is_closed_though_a_library_forgets_that_it_was_cancelled(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(kept, "_AGAIN_S", 0.01)
    address = parse_address("redis+sentinel://127.0.0.1:1/queues/0")
    listening: Any = {
        "cluster": nodes,
        "hints": wire(),
        "switches": SwitchListener(address, {}, call_timeout_s=0, on_switch=lambda: None),
    }[what]
    monkeypatch.setattr(listening, "_renew_map" if what == "cluster" else "_listen", Forgetful().wait)
    if what == "cluster":
        await listening.start(wait_s=0)
    else:
        listening.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(BUDGET_S):
        await listening.close()


async def test_who_hears_a_silent_sentinel_can_be_cancelled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the listener would never be closed."""

    async def send(_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(sentinels, "_PING_EVERY_S", 0.0)
    slow, address = SlowToEnd(), parse_address("redis+sentinel://127.0.0.1:1/queues/0")
    listener = SwitchListener(address, {}, call_timeout_s=0, on_switch=lambda: None)
    connection: Any = SimpleNamespace(read_response=slow.wait, send_packed_command=send)
    assert await is_cancelled(listener._hear(connection), slow)
