"""A Put of many goes through the gate where nothing else is to be done, and leaves what it leaves without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from harness import StoreServer, eventually
from harness.batches import calls_of
from headwayd.domain.errors import HeadwayError, NotDurable, QueueNotFound, StoreFull
from headwayd.domain.model import Policy
from headwayd.engine.ports import PutStep
from headwayd.store import frames, gates, keys, trouble
from integration.desk import BUDGET_S, HOUR_MS, PREFIX, Desk, desk_at, queue_of, store_of

BODIES = [b"%03d" % number + b"x" * 300 for number in range(200)]
Prepare = Callable[[Desk], Awaitable[None]]


@pytest.fixture(autouse=True)
async def _script_is_known(store_server: StoreServer) -> None:
    """Else nothing is opened the first time."""
    store = store_of(store_server)
    with pytest.raises(QueueNotFound):
        await Desk(store, store_server.client(), "nowhere").put_many(BODIES)
    await store.close()


def gates_tried(raw: redis.Redis) -> int:
    """How often payloads were put where a gate would be."""
    return calls_of(raw, "lpushx")


def gates_opened(raw: redis.Redis) -> int:
    """How often there was one: it is named and named back."""
    return calls_of(raw, "rename") // 2


def elements(desk: Desk) -> Any:
    """The line from its head on."""
    return desk.raw.lrange(desk.key("q"), 0, -1)[::-1]


def all_keys(desk: Desk) -> list[bytes]:
    """Of the queue."""
    return sorted(desk.raw.scan_iter(desk.key("q") + "*"))


def all_that_is_kept(desk: Desk) -> dict[bytes, Any]:
    """Of the queue, by key."""
    read: dict[Any, Callable[[bytes], Any]] = {
        b"list": lambda key: desk.raw.lrange(key, 0, -1),
        b"hash": desk.raw.hgetall,
        b"zset": lambda key: desk.raw.zrange(key, 0, -1, withscores=True),
        b"string": desk.raw.get,
    }
    return {key: read[desk.raw.type(key)](key) for key in all_keys(desk)}


def outcomes_and_rest(step: PutStep) -> tuple[object, ...]:
    """All of it, comparable."""
    outcomes = [(one._replace(error=None), one.error and one.error.reason) for one in step.outcomes]
    return outcomes, step._replace(outcomes=())


# -- what the queue is like -------------------------------------------------------------------------------------------


async def is_empty(desk: Desk) -> None:
    await desk.create()


async def was_emptied(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a")
    await desk.take_one(lease_ms=HOUR_MS)


async def has_some(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", b"b", b"filler")


async def has_just_room(desk: Desk) -> None:
    await desk.create(bound=len(BODIES) + 1)
    await desk.put(b"a")


async def has_some_that_came_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", b"b", b"c")
    await desk.give_back((await desk.take_one()).lease, delay_ms=0)


async def has_some_that_are_due_later(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", delay_ms=HOUR_MS)


async def is_paused(desk: Desk) -> None:
    await desk.create()
    await desk.store.set_paused(desk.name, is_paused=True, budget_s=BUDGET_S)


OPEN: list[Prepare] = [
    is_empty,
    was_emptied,
    has_some,
    has_just_room,
    has_some_that_came_back,
    has_some_that_are_due_later,
    is_paused,
]


async def has_room_for_part(desk: Desk) -> None:
    await desk.create(bound=len(BODIES))
    await desk.put(b"a")


async def is_full(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"a")


async def has_a_time_to_live(desk: Desk) -> None:
    await desk.create(time_to_live_ms=HOUR_MS)


async def has_one_that_is_due(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", delay_ms=1_000)
    desk.at(1_000)


async def has_a_lease_that_lapses(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", b"b")
    await desk.take_one(lease_ms=1_000)
    desk.at(1_000)


async def has_a_foreign_message(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a")
    desk.raw.lpush(desk.key("q"), b"foreign")
    desk.raw.incr(desk.key("produced_messages"))


async def lost_a_message_to_a_foreign_client(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"a", b"b")
    desk.foreign_get()


async def has_a_hole(desk: Desk) -> None:
    await desk.create()
    await desk.put(*[b"x"] * 300, ids=[f"m{n}" for n in range(300)])
    await desk.withdraw(*[f"m{n}" for n in range(100, 200, 2)])


async def has_a_foreign_producer(desk: Desk) -> None:
    await desk.create()
    desk.raw.rpop(desk.key("producer_free"))


SHUT: list[Prepare] = [
    has_room_for_part,
    is_full,
    has_a_time_to_live,
    has_one_that_is_due,
    has_a_lease_that_lapses,
    has_a_foreign_message,
    lost_a_message_to_a_foreign_client,
    has_a_foreign_producer,
]


@pytest.mark.parametrize("prepare", [*OPEN, *SHUT, has_a_hole], ids=lambda prepare: prepare.__name__)
async def test_the_same_is_kept_as_without_a_gate(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, prepare: Prepare
) -> None:
    await prepare(desk)
    first = {key: (desk.raw.dump(key), desk.raw.pttl(key)) for key in all_keys(desk)}
    before, opened = gates_tried(desk.raw), gates_opened(desk.raw)
    step = await desk.put_many(BODIES)
    assert gates_tried(desk.raw) == before + 1
    if prepare is not has_a_hole:  # it may have been filled
        assert gates_opened(desk.raw) == opened + (prepare in OPEN)
    kept = all_that_is_kept(desk)
    desk.raw.delete(*kept)
    for key, (dumped, left_ms) in first.items():
        assert dumped
        desk.raw.restore(key, max(int(left_ms), 0), dumped)
    monkeypatch.setattr(gates, "_WORTH_BYTES", 10**9)
    assert outcomes_and_rest(await desk.put_many(BODIES)) == outcomes_and_rest(step)
    assert gates_tried(desk.raw) == before + 1
    assert all_that_is_kept(desk) == kept
    assert await desk.is_sound()
    if prepare is has_a_foreign_producer:  # it has done
        desk.raw.lpush(desk.key("producer_free"), "0")


async def test_none_is_opened_past_a_producer_in_line(store_server: StoreServer, desk: Desk) -> None:
    await desk.create(bound=1)
    with store_server.client() as other, other.pubsub() as pubsub:
        pubsub.subscribe(PREFIX + keys.WAKE_CHANNEL + "another")
        await desk.put(b"a")
        await desk.put(b"b", waiter="another#1")
        await desk.store.update(desk.name, Policy(), ["bound"], budget_s=BUDGET_S)
        opened = gates_opened(desk.raw)
        assert len((await desk.put_many(BODIES)).outcomes) == 0
        assert gates_opened(desk.raw) == opened
    assert elements(desk) == [b"a"]


async def test_a_queue_that_a_foreign_client_made_has_no_gate_until_it_is_known(desk: Desk) -> None:
    desk.raw.set(desk.key("bound"), 0)
    for token in ("producer_free", "consumer_free", "not_full"):
        desk.raw.lpush(desk.key(token), "0")
    opened = gates_opened(desk.raw)
    assert len((await desk.put_many(BODIES)).outcomes) == len(BODIES)
    assert gates_opened(desk.raw) == opened
    assert elements(desk) == BODIES
    assert await desk.is_sound()


async def test_where_a_gate_was_shut_none_is_tried_for_a_while(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await has_room_for_part(desk)
    tried = gates_tried(desk.raw)

    async def is_tried_again() -> bool:
        await desk.put_many(BODIES)
        return gates_tried(desk.raw) == tried + 2

    monkeypatch.setattr(gates, "_SHUT_S", 0.1)
    await desk.put_many(BODIES)
    assert gates_tried(desk.raw) == tried + 1
    monkeypatch.setattr(gates, "_SHUT_S", 3_600.0)
    await eventually(is_tried_again, within=20)
    for _ in range(3):
        await desk.put_many(BODIES)
    assert gates_tried(desk.raw) == tried + 2


async def test_what_looks_like_a_frame_and_what_is_little_is_put_without_a_gate(desk: Desk) -> None:
    await desk.create()
    tried = gates_tried(desk.raw)
    await desk.put_many([*BODIES[:-1], frames.MAGIC + b"y" * 299])
    await desk.put_many(BODIES[:100])
    assert gates_tried(desk.raw) == tried
    delivered = await desk.take(300)
    assert [one.payload for one in delivered] == [*BODIES[:-1], frames.MAGIC + b"y" * 299, *BODIES[:100]]


async def test_payloads_may_have_any_lengths(desk: Desk) -> None:
    await desk.create()
    bodies = [bytes([number % 245]) * (number * 7 % 900) for number in range(400)]
    opened = gates_opened(desk.raw)
    await desk.put_many(bodies)
    assert gates_opened(desk.raw) == opened + 1
    assert elements(desk) == bodies
    assert desk.raw.get(desk.key("produced_bytes")) == b"%d" % sum(map(len, bodies))
    assert await desk.is_sound()


async def test_a_script_that_the_store_has_forgotten_puts_nothing_twice(desk: Desk) -> None:
    await desk.create()
    for _ in range(3):
        await desk.put_many(BODIES)
        desk.raw.script_flush()
    assert elements(desk) == BODIES * 3
    assert await desk.is_sound()


async def test_nobody_sees_the_line_while_it_has_another_name(store_server: StoreServer, desk: Desk) -> None:
    await has_some(desk)
    lengths: list[int] = []

    def look() -> None:
        with store_server.client() as other:
            while not is_over.is_set():
                length, gate = other.llen(desk.key("q")), other.exists(desk.key("gate"))
                assert isinstance(length, int)
                lengths.append(-1 if gate else length)

    is_over = threading.Event()
    looking = asyncio.create_task(asyncio.to_thread(look))
    try:
        for _ in range(50):
            seen = len(lengths)
            await eventually(lambda seen=seen: len(lengths) > seen, within=20)  # type: ignore[misc]
            await desk.put_many(BODIES)
    finally:
        is_over.set()
        await looking
    assert sorted(set(lengths)) == sorted({3 + len(BODIES) * n for n in range(51)} & set(lengths))
    assert len(lengths) > 10


async def test_a_foreign_client_that_waits_is_served(store_server: StoreServer, desk: Desk) -> None:
    await desk.create()
    with store_server.client() as other:
        waiting = asyncio.create_task(asyncio.to_thread(other.brpop, [desk.key("q")], timeout=20))
        await eventually(lambda: bool(desk.raw.info("clients")["blocked_clients"]))
        await desk.put_many(BODIES)
        assert await waiting == (desk.key("q").encode(), BODIES[0])
    desk.raw.incr(desk.key("consumed_messages"))
    assert elements(desk) == BODIES[1:]
    assert await desk.is_sound()


async def test_a_full_store_takes_none_of_them(desk: Desk) -> None:
    await has_some(desk)
    desk.raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await desk.put_many(BODIES)
    finally:
        desk.raw.config_set("maxmemory", 0)
    assert elements(desk) == [b"a", b"b", b"filler"]
    assert await desk.is_sound()
    await desk.put_many(BODIES)
    assert elements(desk) == [b"a", b"b", b"filler", *BODIES]


@pytest.mark.parametrize(("denied", "tries"), [("rename", 1), ("multi", 0), ("exec", 0), ("lpushx", 1)])
async def test_a_user_who_may_not_do_all_of_it_puts_without_a_gate(
    store_server: StoreServer, request: pytest.FixtureRequest, denied: str, tries: int
) -> None:
    with store_server.client() as raw:
        raw.acl_setuser(
            "narrow",
            True,
            passwords=["+secret"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
            commands=[f"-{denied}"],
        )
    url = store_server.url.replace("redis://", "redis://narrow:secret@")
    async with desk_at(store_server, queue_of(request), url=url) as desk:
        await desk.create()
        tried = gates_tried(desk.raw)
        for _ in range(3):
            await desk.put_many(BODIES)
        assert elements(desk) == BODIES * 3
        assert desk.raw.exists(desk.key("gate")) == 0
        assert await desk.is_sound()
        assert gates_tried(desk.raw) <= tried + tries


@pytest.mark.parametrize(
    ("setting", "usual", "means"),
    [("maxmemory", 0, StoreFull), ("min-replicas-to-write", 0, NotDurable)],
    ids=["full", "without replicas"],
)
async def test_what_befalls_the_store_within_the_transaction_is_told_as_what_it_is(
    store_server: StoreServer, setting: str, usual: int, means: type[HeadwayError]
) -> None:
    """Then it is the end of the transaction that fails, in words of its own."""
    with store_server.client() as raw:
        connection = raw.connection_pool.get_connection()
        try:
            for command in (("MULTI",), ("LPUSHX", "nowhere", "x")):
                connection.send_command(*command)
                connection.read_response()
            raw.config_set(setting, 1)
            connection.send_command("EXEC")
            with pytest.raises(redis.exceptions.ExecAbortError) as aborted:
                connection.read_response()
        finally:
            raw.config_set(setting, usual)
            raw.connection_pool.release(connection)
    assert type(trouble.refused(aborted.value)) is means


async def test_the_gate_opens_again_when_all_that_was_due_is_done(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one", delay_ms=10)
    desk.at(10)
    await desk.sweep()
    assert desk.raw.hget(desk.key("meta"), "due_said") == b"0"
    opened = gates_opened(desk.raw)
    await desk.put_many(BODIES)
    assert gates_opened(desk.raw) == opened + 1
    assert await desk.is_sound()
