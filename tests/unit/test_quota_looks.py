"""A quota between two looks at the store, and while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headwayd.domain.access import Quotas, Used
from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import HeadwayError, OutcomeUnknown, QueueFull, QuotaExceeded, StoreUnavailable
from headwayd.domain.joined import Joined
from headwayd.domain.model import PutCode, PutOutcome, refused
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

    async def look(self, _with_bytes: bool) -> Used:
        self.asked.set()
        await self.answering.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        return self.has


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def quota(store: Store) -> Quota:
    made = Quota(store.look)
    made.limits = Quotas(messages=MOST, leases=MOST)
    return made


def make_old(quota: Quota) -> None:
    """The last look."""
    quota._look_again_at = 0.0


def some(count: int) -> BareMessages:
    return BareMessages([b"four"] * count)


async def put(quota: Quota, count: int) -> None:
    with PutClaim(quota) as claim:
        await claim.want(some(count))
        claim.note(some(count), Joined("g", 1, 1, count))


async def lease(quota: Quota, count: int) -> None:
    await quota.check_leases(count)
    quota.note_leased(count)


@pytest.mark.parametrize("take", [put, lease])
async def test_what_was_let_in_before_a_look_counts_while_it_is_under_way(
    quota: Quota, store: Store, take: Callable[[Quota, int], asyncio.Future[None]]
) -> None:
    await take(quota, MOST)
    make_old(quota)
    store.has = Used(messages=MOST, leases=MOST)
    store.answering.clear()
    store.asked.clear()
    looking = asyncio.ensure_future(take(quota, 1))
    await store.asked.wait()
    with pytest.raises(QuotaExceeded):
        await take(quota, 1)
    store.answering.set()
    with pytest.raises(QuotaExceeded):
        await looking
    store.has = NOTHING
    make_old(quota)
    await take(quota, MOST)  # what went is free, and nothing counts twice


async def test_a_look_that_fails_forgets_nothing(quota: Quota, store: Store) -> None:
    await put(quota, MOST)
    make_old(quota)
    store.is_away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await put(quota, 1)
    store.answering.clear()
    store.asked.clear()
    looking = asyncio.ensure_future(put(quota, 1))
    await store.asked.wait()
    with pytest.raises(QuotaExceeded):
        await put(quota, 1)
    store.answering.set()
    with pytest.raises(StoreUnavailable):
        await looking


async def test_what_waits_to_be_put_counts_as_long_as_it_waits(quota: Quota) -> None:
    with PutClaim(quota) as waits:
        await waits.want(some(600))
        for _ in range(3):
            make_old(quota)
            with pytest.raises(QuotaExceeded):
                await put(quota, 401)
        await put(quota, 400)
    make_old(quota)
    await put(quota, MOST)  # nothing of it was put


async def test_what_is_known_to_have_joined_counts_once_though_the_rest_waits(quota: Quota, store: Store) -> None:
    with PutClaim(quota) as waits:
        await waits.want(some(600))
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
        await claim.want(some(4))
        claim.note(some(4), [PutOutcome(code, "") for code in codes])
    with PutClaim(quota) as claim:
        with pytest.raises(QuotaExceeded):
            await claim.want(some(249))  # of four bytes each
        await claim.want(some(248))
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
            await claim.want(some(600))
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
