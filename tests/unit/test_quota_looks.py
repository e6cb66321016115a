"""A quota between two looks at the store, and while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headwayd.domain.access import Quotas, Used
from headwayd.domain.errors import QuotaExceeded, StoreUnavailable
from headwayd.engine.quotas import Quota

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


async def put(quota: Quota, count: int) -> None:
    await quota.check_put(count, lambda: 0)


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
