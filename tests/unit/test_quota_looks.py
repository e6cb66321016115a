"""A quota between two looks at the store, and while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from headwayd.domain.access import CallerRole, Grant, Identity, Quotas, Used
from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import (
    HeadwayError,
    OutcomeUnknown,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    StoreUnavailable,
)
from headwayd.domain.joined import Joined
from headwayd.domain.limits import Limits
from headwayd.domain.model import GetOrder, Policy, PutCode, PutOrder, PutOutcome, refused
from headwayd.domain.standing import GetOutcome
from headwayd.engine import quotas
from headwayd.engine.budgets import Budget
from headwayd.engine.guarded import GuardedEngine
from headwayd.engine.quotas import PutClaim, Quota

MOST = 1_000
NOTHING = Used()


class Store:
    """What a look finds, once it is answered."""

    def __init__(self) -> None:
        self.has = NOTHING
        self.is_away = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.asked = asyncio.Event()
        self.times_asked = 0

    async def look(self, _with_bytes: bool) -> Used:
        self.times_asked += 1
        self.asked.set()
        await self.answering.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        return self.has


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def quota(store: Store) -> AsyncIterator[Quota]:
    made = Quota(store.look)
    made.limits = Quotas(messages=MOST, leases=MOST)
    yield made
    await made.close()


def make_old(quota: Quota) -> None:
    """The last look."""
    quota._look_again_at = 0.0


async def answer(store: Store, quota: Quota) -> None:
    """Lets the look that is under way end."""
    looking = quota._looking
    assert looking is not None
    store.answering.set()
    await looking


def some(count: int) -> BareMessages:
    return BareMessages([b"four"] * count)


async def put(quota: Quota, count: int) -> None:
    with PutClaim(quota) as claim:
        await claim.want(some(count), Budget(2.0))
        claim.note(some(count), Joined("g", 1, 1, count))


async def lease(quota: Quota, count: int) -> None:
    await quota.check_leases(count, Budget(2.0))
    quota.note_leased(count)


async def at_its_look(store: Store, ask: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """It has begun, and waits for its look, which is not answered yet."""
    store.answering.clear()
    store.asked.clear()
    begun = asyncio.create_task(ask)
    await store.asked.wait()
    return begun


@pytest.mark.parametrize("take", [put, lease])
async def test_what_was_let_in_before_a_look_counts_while_it_is_under_way(
    quota: Quota, store: Store, take: Callable[[Quota, int], Coroutine[Any, Any, None]]
) -> None:
    await take(quota, MOST)
    make_old(quota)
    store.has = Used(messages=MOST, leases=MOST)
    looking = await at_its_look(store, take(quota, 1))
    with pytest.raises(QuotaExceeded):
        await take(quota, 1)
    store.answering.set()
    with pytest.raises(QuotaExceeded):
        await looking
    store.has = NOTHING
    make_old(quota)
    await take(quota, MOST)  # what went is free, and nothing counts twice


async def test_where_a_look_fails_all_go_on_with_what_is_known(quota: Quota, store: Store) -> None:
    await put(quota, MOST - 1)
    store.is_away = True
    for _ in range(3):
        make_old(quota)
        with pytest.raises(QuotaExceeded):
            await put(quota, 2)
    await put(quota, 1)
    assert store.times_asked == 4  # it is not asked anew at once
    make_old(quota)
    looking = await at_its_look(store, put(quota, 1))
    with pytest.raises(QuotaExceeded):
        await put(quota, 1)
    store.answering.set()
    with pytest.raises(QuotaExceeded):
        await looking


@pytest.mark.parametrize("kind", ["put", "create"])
async def test_a_first_look_that_fails_is_not_begun_anew_at_once(quota: Quota, store: Store, kind: str) -> None:
    quota.limits = Quotas(queues=1, messages=MOST)
    view = guarded(FakeEngine(), quota)
    store.is_away = True
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            await ask(view, kind, wait_ms=0, budget_s=2.0)
    assert store.times_asked == 1
    make_old(quota)
    store.is_away = False
    await ask(view, kind, wait_ms=0, budget_s=2.0)
    assert store.times_asked == 2


async def test_what_waits_to_be_put_counts_as_long_as_it_waits(quota: Quota) -> None:
    with PutClaim(quota) as waits:
        await waits.want(some(600), Budget(2.0))
        for _ in range(3):
            make_old(quota)
            with pytest.raises(QuotaExceeded):
                await put(quota, 401)
        await put(quota, 400)
    make_old(quota)
    await put(quota, MOST)  # nothing of it was put


async def test_what_is_known_to_have_joined_counts_once_though_the_rest_waits(quota: Quota, store: Store) -> None:
    with PutClaim(quota) as waits:
        await waits.want(some(600), Budget(2.0))
        waits.note(some(500), Joined("g", 1, 1, 500))
        with pytest.raises(QuotaExceeded):
            await put(quota, 401)
        make_old(quota)
        store.has = Used(messages=500)
        with pytest.raises(QuotaExceeded):
            await put(quota, 401)
        await put(quota, 400)


async def test_only_what_is_more_than_before_counts_behind_a_put(quota: Quota) -> None:
    quota.limits = Quotas(messages=MOST, bytes=MOST)
    codes = [PutCode.KEPT, PutCode.REFUSED, PutCode.QUEUED, PutCode.DELAYED]
    with PutClaim(quota) as claim:
        await claim.want(some(4), Budget(2.0))
        claim.note(some(4), [PutOutcome(code, "") for code in codes])
    with PutClaim(quota) as claim:
        with pytest.raises(QuotaExceeded):
            await claim.want(some(249), Budget(2.0))  # of four bytes each
        await claim.want(some(248), Budget(2.0))
        claim.note(some(248), refused(some(248), QueueFull("full")))
        await put(quota, 248)


@pytest.mark.parametrize(
    ("error", "may_have_joined"),
    [(QueueFull("full"), False), (OutcomeUnknown("lost"), True), (asyncio.CancelledError(), True)],
)
async def test_what_may_have_joined_counts_until_the_next_look(
    quota: Quota, error: HeadwayError | asyncio.CancelledError, may_have_joined: bool
) -> None:
    claim = PutClaim(quota)

    async def broken() -> None:
        with claim:
            await claim.want(some(600), Budget(2.0))
            claim.note(some(100), Joined("g", 1, 1, 100))
            raise error

    with pytest.raises(type(error)):
        await broken()
    claim.note(some(500), Joined("g", 101, 101, 500))  # a step of it that ended late
    if may_have_joined:
        with pytest.raises(QuotaExceeded):
            await put(quota, 401)
        await put(quota, 400)
    else:
        await put(quota, 900)
    make_old(quota)
    await put(quota, MOST)


# -- how long who waits for a look -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_away", [False, True])
async def test_those_who_wait_for_a_look_share_it_and_what_has_become_of_it(
    quota: Quota, store: Store, is_away: bool
) -> None:
    store.is_away = is_away
    store.answering.clear()
    waiting = [asyncio.ensure_future(put(quota, 1)) for _ in range(20)]
    await store.asked.wait()
    store.answering.set()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(end, StoreUnavailable) for end in ends] == [is_away] * 20
    assert store.times_asked == 1


async def test_a_look_that_takes_longer_than_calls_may_goes_on_without_them(quota: Quota, store: Store) -> None:
    store.answering.clear()
    async with asyncio.timeout(5):
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as said, PutClaim(quota) as claim:
                await claim.want(some(1), Budget(0.02))
            assert said.value.metadata == {"cause": "SILENT"}
    store.answering.set()
    await put(quota, MOST)
    assert store.times_asked == 1


async def test_what_is_known_will_do_where_the_next_look_takes_long(quota: Quota, store: Store) -> None:
    await put(quota, MOST - 1)
    make_old(quota)
    store.answering.clear()
    async with asyncio.timeout(5):
        with PutClaim(quota) as claim:
            budget = Budget(0.1)
            await claim.want(some(1), budget)
            assert budget.left_s < 0.1
        with PutClaim(quota) as claim, pytest.raises(QuotaExceeded):
            await claim.want(some(2), Budget(0.1))


async def test_queues_that_are_made_together_share_a_look_and_the_room_that_it_found(
    quota: Quota, store: Store
) -> None:
    quota.limits = Quotas(queues=3)
    store.has = Used(queues={"before"})
    first = await at_its_look(store, quota.check_queues("a", Budget(5.0)))
    later = [asyncio.ensure_future(quota.check_queues(name, Budget(5.0))) for name in "bbccdd"]
    await asyncio.sleep(0)  # they have all come while the first look is under way
    store.answering.set()
    await first
    ends = await asyncio.gather(*later, return_exceptions=True)
    assert [isinstance(end, QuotaExceeded) for end in ends] == [False] * 4 + [True] * 2
    assert store.times_asked == 2  # the first one may have been too early to see `a`


async def test_a_queue_is_made_by_the_last_look_where_the_next_takes_long(
    quota: Quota, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_WAIT_SHARE", 0.001)
    quota.limits = Quotas(queues=2, messages=MOST)
    store.has = Used(queues={"before"})
    store.answering.clear()
    async with asyncio.timeout(5):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await quota.check_queues("a", Budget(0.02))
        for _ in range(2):  # what was let in while a look was under way is known behind it, too
            await answer(store, quota)
            store.answering.clear()
            await quota.check_queues("a", Budget(60.0))  # it would be given up long before all of that is over
            with pytest.raises(QuotaExceeded):
                await quota.check_queues("b", Budget(0.1))


async def test_a_queue_that_is_made_during_a_look_and_found_by_it_counts_once(quota: Quota, store: Store) -> None:
    quota.limits = Quotas(queues=4)
    store.has = Used(queues={"before"})
    await quota.check_queues("a", Budget(5.0))
    store.answering.clear()
    async with asyncio.timeout(5):
        await quota.check_queues("b", Budget(0.02))  # by the look before
        store.has = Used(queues={"before", "a", "b"})
        await answer(store, quota)
        store.answering.clear()
        await quota.check_queues("b", Budget(0.02))
        await quota.check_queues("c", Budget(0.02))
        with pytest.raises(QuotaExceeded):
            await quota.check_queues("d", Budget(0.02))


class FakeEngine:
    """Notes how much time it was given, and what was refused before."""

    limits = Limits()

    def __init__(self, *standing: str) -> None:
        self.given: tuple[int, float] = (0, 0.0)
        self.refused_counts: list[int] = []
        self._standing = standing

    async def describe(self, queue: str, **_: object) -> None:
        if queue not in self._standing:
            raise QueueNotFound(queue)

    async def create(self, queue: str, _policy: Policy, *, budget_s: float) -> tuple[None, bool]:
        self.given = 0, budget_s
        return None, queue not in self._standing

    async def put(self, order: PutOrder, *, budget_s: float) -> list[PutOutcome]:
        self.given = order.wait_ms, budget_s
        return []

    def note_refused(self, order: PutOrder, error: HeadwayError) -> None:
        assert isinstance(error, QuotaExceeded)
        self.refused_counts.append(len(order.messages))

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        self.given = order.wait_ms, budget_s
        return GetOutcome((), ())


def guarded(engine: FakeEngine, quota: Quota) -> GuardedEngine:
    identity = Identity(name="", namespace="default", grants=(Grant(CallerRole.ADMIN),))
    return GuardedEngine(cast(Any, engine), identity, quota)


async def ask(engine: GuardedEngine, kind: str, *, wait_ms: int, budget_s: float) -> None:
    if kind == "put":
        await engine.put(PutOrder("q", some(1), wait_ms=wait_ms), budget_s=budget_s)
    elif kind == "get":
        await engine.get(GetOrder("q", wait_ms=wait_ms), budget_s=budget_s)
    else:
        await engine.create("q", Policy(), budget_s=budget_s)


@pytest.mark.parametrize("kind", ["put", "get", "create"])
async def test_the_time_of_a_look_is_taken_from_that_of_its_call(store: Store, quota: Quota, kind: str) -> None:
    quota.limits = Quotas(queues=1, messages=MOST, leases=MOST)
    engine = FakeEngine()
    asked = await at_its_look(store, ask(guarded(engine, quota), kind, wait_ms=0, budget_s=60.0))
    asyncio.get_running_loop().call_later(0.05, store.answering.set)
    await asked
    assert 0 < engine.given[1] < 60.0 - 0.04


@pytest.mark.parametrize("kind", ["put", "get"])
async def test_it_is_taken_from_the_wait_of_a_call_that_may_wait(store: Store, quota: Quota, kind: str) -> None:
    engine = FakeEngine()
    asked = await at_its_look(store, ask(guarded(engine, quota), kind, wait_ms=60_000, budget_s=60.0))
    asyncio.get_running_loop().call_later(0.05, store.answering.set)
    await asked
    assert 0 < engine.given[0] < 60_000 - 40
    assert engine.given[1] == 60.0


async def test_a_wait_that_was_shorter_than_the_look_is_still_one(store: Store, quota: Quota) -> None:
    """What does not wait is told QUEUE_PAUSED and the like, which who waits is not."""
    engine = FakeEngine()
    asked = await at_its_look(store, ask(guarded(engine, quota), "get", wait_ms=40, budget_s=60.0))
    asyncio.get_running_loop().call_later(0.1, store.answering.set)
    await asked
    assert engine.given[0] == 1
    assert 59.0 < engine.given[1] < 60.0


async def test_a_queue_that_stands_is_looked_for_by_itself(store: Store, quota: Quota) -> None:
    quota.limits = Quotas(queues=0)
    await guarded(FakeEngine("q"), quota).create("q", Policy(), budget_s=2.0)
    assert store.times_asked == 0


async def test_what_may_come_again_is_not_refused_yet(quota: Quota) -> None:
    """Batches that came together on a stream do not wait for room, and are put one by one where they find none."""
    engine, order = FakeEngine(), PutOrder("q", some(MOST + 1))
    view = guarded(engine, quota)
    with pytest.raises(QuotaExceeded):
        await view.put_each(order._replace(comes_again=True), budget_s=2.0)
    assert not engine.refused_counts
    with pytest.raises(QuotaExceeded):
        await view.put_each(order, budget_s=2.0)
    with pytest.raises(QuotaExceeded):
        await view.put(order, budget_s=2.0)
    assert engine.refused_counts == [MOST + 1] * 2
