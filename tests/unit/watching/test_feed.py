"""One feed, however many watch: what it asks the store, and that it goes on through trouble."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.errors import OutcomeUnknown, QueueNotFound, ShuttingDown, StoreUnavailable
from headwayd.domain.hints import poll_hints
from headwayd.domain.model import Policy
from headwayd.domain.watching import End, ToldFinished, ToldLeased, ToldWaiting, WatchOrder
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates, NoEstimator
from headwayd.engine.watching.watching import Watching
from unit.watching.fake_queue import FakeQueue, FakeStore


@pytest.fixture
def store() -> FakeStore:
    queue = FakeQueue()
    for _ in range(30):
        queue.put()
    return FakeStore(queue)


@pytest.fixture
def watching(store: FakeStore, tasks: Tasks) -> Watching:
    return Watching(cast(Store, store), tasks.spawn, Estimates(NoEstimator))


def watch(watching: Watching, *ids: str, budget_s: float = 2.0, attended: bool = False) -> Any:
    return watching.messages(WatchOrder(queue="q", message_ids=ids, is_attended=attended), budget_s=budget_s)


async def next_of(stream: Any) -> Any:
    async with asyncio.timeout(5):
        return await anext(stream)


async def test_a_move_of_the_head_costs_the_same_however_many_watch(watching: Watching, store: FakeStore) -> None:
    assert store.queue is not None
    streams = [watch(watching, f"m{number % 10 + 5}") for number in range(200)]
    await asyncio.gather(*map(next_of, streams))
    assert store.asked["places"] <= 2
    before = dict(store.asked)
    store.queue.lease()
    watching.kick("q")
    told = await asyncio.gather(*map(next_of, streams))
    assert {type(one) for one in told} == {ToldWaiting}
    assert store.asked["feed"] - before["feed"] <= 2
    assert store.asked["places"] == before["places"]
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize("what", ["delete", "ack", "go down"])
async def test_of_many_who_learn_the_same_some_do_in_each_turn_of_the_loop(
    watching: Watching, store: FakeStore, what: str
) -> None:
    assert store.queue is not None
    streams = [watch(watching, f"m{number % 30 if what == 'delete' else 5}") for number in range(300)]
    await asyncio.gather(*map(next_of, streams))
    told = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    if what == "delete":
        store.queue = None
    elif what == "ack":
        store.queue.end("m5")
    else:
        watching.fail_all(ShuttingDown("going down"))
    watching.kick("q")
    left, most = len(told), 0
    async with asyncio.timeout(60):
        while left:
            await asyncio.sleep(0)
            before, left = left, sum(not one.done() for one in told)
            most = max(most, before - left)
    assert most <= 50
    ends = await asyncio.gather(*told, return_exceptions=True)
    assert {type(end) for end in ends} == {ShuttingDown if what == "go down" else ToldFinished}
    for stream in streams:
        await stream.aclose()


def polled_every(ms: int) -> Policy:
    return Policy(poll_base_ms=ms, poll_per_position_ms=0, poll_max_ms=ms)


async def test_hints_are_of_the_policy_as_it_is_now(watching: Watching, store: FakeStore) -> None:
    assert store.queue is not None
    async with aclosing(watch(watching, "m5")) as stream:
        first = await next_of(stream)
        store.queue.policy = polled_every(7_000)
        store.queue.lease()
        watching.kick("q")
        then = await next_of(stream)
    assert first.hints == poll_hints(Policy(), first.position)
    assert then.hints.poll_min_ms == 7_000


async def test_hints_of_a_queue_made_anew_are_of_its_own_policy(watching: Watching, store: FakeStore) -> None:
    async with aclosing(watch(watching, "m5")) as old:
        await next_of(old)
        made = FakeQueue("g2")
        made.now, made.policy = 1_000_000, polled_every(7_000)
        name = made.put()
        store.queue = made
        async with aclosing(watch(watching, name)) as stream:
            assert (await next_of(stream)).hints.poll_min_ms == 7_000


async def test_it_ends_when_nobody_watches(watching: Watching, tasks: Tasks) -> None:
    async with aclosing(watch(watching, "m3")) as stream:
        await next_of(stream)
        assert len(watching) == 1
    assert len(watching) == 0
    async with asyncio.timeout(2):
        await tasks.drain(5)
    assert not tasks._tasks


async def test_it_goes_on_after_trouble(watching: Watching, store: FakeStore) -> None:
    assert store.queue is not None
    async with aclosing(watch(watching, "m0")) as stream:
        await next_of(stream)
        store.error = StoreUnavailable("gone", metadata={"cause": "REFUSED"})
        for wake in watching.wakes():
            wake()
        coming = asyncio.create_task(next_of(stream))
        asked = sum(store.asked.values())
        await eventually(lambda: sum(store.asked.values()) > asked)
        store.queue.lease()
        store.error = None
        assert isinstance(await coming, ToldLeased)


async def test_a_new_watch_is_refused_at_once_by_a_store_that_is_not_there(
    watching: Watching, store: FakeStore
) -> None:
    store.error = StoreUnavailable("gone", metadata={"cause": "REFUSED"})
    with pytest.raises(StoreUnavailable):
        await next_of(watch(watching, "m0", budget_s=60.0))


@pytest.mark.parametrize(
    ("lost", "told"), [("RESET", "REFUSED"), ("SILENT", "SILENT"), ("REPLICAS", "STORE"), ("SLIPPED", "STORE")]
)
async def test_a_lost_answer_is_asked_for_again_and_never_told_as_unknown(
    watching: Watching, store: FakeStore, lost: str, told: str
) -> None:
    store.error = OutcomeUnknown("lost", metadata={"cause": lost})
    with pytest.raises(StoreUnavailable) as error:
        await next_of(watch(watching, "m0", budget_s=0.2))
    assert error.value.metadata == {"cause": told}
    assert store.asked["places"] > 1


async def test_whoever_has_little_time_does_not_wait_for_the_look_of_another(
    watching: Watching, store: FakeStore
) -> None:
    store.hold = asyncio.Event()
    patient = asyncio.create_task(next_of(watch(watching, "m0", budget_s=60.0)))
    await eventually(lambda: store.asked["places"] == 1)
    with pytest.raises(StoreUnavailable):
        await next_of(watch(watching, "m1", budget_s=0.1))
    assert not patient.done()
    store.hold.set()
    assert isinstance(await patient, ToldWaiting)


async def test_a_queue_that_is_gone_ends_those_who_watch_and_refuses_those_who_come(
    watching: Watching, store: FakeStore
) -> None:
    async with aclosing(watch(watching, "m0", "m1")) as stream:
        for _ in range(2):
            await next_of(stream)
        store.queue = None
        watching.kick("q")
        told = [await next_of(stream), await next_of(stream)]
        assert [cast(ToldFinished, one).end for one in told] == [End.DELETED] * 2
        with pytest.raises(StopAsyncIteration):
            await next_of(stream)
        with pytest.raises(QueueNotFound):
            await next_of(watch(watching, "m0"))


async def test_going_down_ends_everybody_and_withdraws_the_attended(
    watching: Watching, store: FakeStore, tasks: Tasks
) -> None:
    assert store.queue is not None
    stream = watch(watching, "m0", "m1", attended=True)
    await next_of(stream)
    watching.fail_all(ShuttingDown("going down"))
    with pytest.raises(ShuttingDown):
        await next_of(stream)
    await tasks.drain(5)
    assert store.withdrawn == ["m0", "m1"]
    assert store.withdrawn_from == [store.queue.generation]


async def test_what_nothing_was_heard_of_is_withdrawn_from_whichever_queue_there_is(
    watching: Watching, store: FakeStore, tasks: Tasks
) -> None:
    store.hold = asyncio.Event()
    reader = asyncio.create_task(next_of(watch(watching, "m0", attended=True)))
    await eventually(lambda: store.asked["places"] > 0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    store.hold.set()
    await tasks.drain(5)
    assert (store.withdrawn, store.withdrawn_from) == (["m0"], [""])


async def test_a_cancelled_watch_withdraws_the_attended_even_so(
    watching: Watching, store: FakeStore, tasks: Tasks
) -> None:
    assert store.queue is not None

    async def read_all() -> None:
        async with aclosing(watch(watching, "m0", "m1", attended=True)) as stream:
            async for _ in stream:
                begun.set()

    begun = asyncio.Event()
    reader = asyncio.create_task(read_all())
    await begun.wait()
    store.error = StoreUnavailable("gone", metadata={"cause": "REFUSED"})
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert store.withdrawn == []
    store.error = None
    await tasks.drain(5)
    assert store.withdrawn == ["m0", "m1"]
