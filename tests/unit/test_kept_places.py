"""A place that is kept behind a wait: by where it stands then, as far as the store tells that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import Mock

import pytest

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable
from headwayd.domain.hints import PollHints
from headwayd.domain.model import GetOrder, Policy
from headwayd.domain.places import LineNumbers
from headwayd.domain.standing import Footing, Footings, Standing, Waiter
from headwayd.engine.consumers import Consumer, Consumers
from headwayd.engine.ports import GetStep, Store
from headwayd.engine.tasks import Tasks

BUDGET_S = 2.0
POLLS = Policy()


class FakeStore:
    """Tells of one place in line, and keeps it."""

    find_quiet = None
    quiet_at_once = 1

    def __init__(self) -> None:
        self.position = 1
        self.trouble: HeadwayError | None = None
        self.kept_by: list[PollHints] = []
        self.look_s = self.keep_s = 0.0

    async def footings(self, _queue: str, _waiters: Sequence[Waiter], *, budget_s: float, **_: Any) -> Footings:
        self.look_s = budget_s
        if self.trouble is not None:
            raise self.trouble
        found = [Footing(position=self.position, number=7, owned=0)]
        return Footings(polls=POLLS, near_number=None, numbers=cast(LineNumbers, Mock()), footings=found)

    async def keep_place(
        self, _queue: str, _waiter: Waiter, _place: str, hints: PollHints, *, budget_s: float
    ) -> tuple[Standing, LineNumbers]:
        self.kept_by.append(hints)
        self.keep_s = budget_s
        return cast(Standing, Mock()), cast(LineNumbers, Mock())


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def consumers(store: FakeStore, tasks: Tasks) -> Consumers:
    return Consumers(cast(Store, store), tasks.spawn, process="here")


@pytest.fixture
def waited(consumers: Consumers) -> Consumer:
    """A poll that has waited, and stood ninth when it tried last."""
    consumer = consumers.enter(GetOrder("q", wait_ms=1_000, stands=True), budget_s=BUDGET_S, waits=True)
    consumer.learn(GetStep((), (), number=7, position=9, polls=POLLS))
    return consumer


@pytest.mark.parametrize("error", [StoreUnavailable("silent"), OutcomeUnknown("silent")])
async def test_a_place_is_kept_by_what_is_known_of_it_where_a_look_fails(
    store: FakeStore, consumers: Consumers, waited: Consumer, error: HeadwayError
) -> None:
    known = waited.hints
    store.trouble = error
    await consumers.keep_place(waited, "@a", budget_s=BUDGET_S)
    assert store.kept_by == [known]


async def test_a_look_leaves_time_to_keep_it(store: FakeStore, consumers: Consumers, waited: Consumer) -> None:
    await consumers.keep_place(waited, "@a", budget_s=BUDGET_S)
    assert 0 < store.look_s <= BUDGET_S / 2
    assert store.keep_s > BUDGET_S / 2


@pytest.mark.parametrize(("position", "known"), [(2, 2), (0, 9)])
async def test_who_was_dropped_is_put_back_where_it_stood(
    store: FakeStore, consumers: Consumers, waited: Consumer, position: int, known: int
) -> None:
    store.position = position
    await consumers.keep_place(waited, "@a", budget_s=BUDGET_S)
    assert waited.last is not None
    assert waited.last.position == known
    assert store.kept_by == [waited.hints]
