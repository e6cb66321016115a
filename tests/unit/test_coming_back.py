"""A place is looked for again before it is called lost, for as long as the budget allows."""

from __future__ import annotations

import pytest

from headwayd.domain.errors import PlaceLost
from headwayd.engine.coming_back import come_back


class Store:
    """Keeps the place only when it has been asked so often."""

    def __init__(self, *, kept_at_try: int) -> None:
        self._kept_at_try = kept_at_try
        self.budgets: list[float] = []

    async def step(self, budget_s: float) -> str:
        """One try."""
        self.budgets.append(budget_s)
        if len(self.budgets) < self._kept_at_try:
            raise PlaceLost("the place in line is lost")
        return "kept"


async def test_a_place_that_is_kept_late_is_found_within_one_budget() -> None:
    store = Store(kept_at_try=3)
    assert await come_back(store.step, 2.0) == "kept"
    first, second, third = store.budgets
    assert 2.0 >= first > second > third > 0


@pytest.mark.parametrize(("budget_s", "tries"), [(2.0, 4), (0.05, 1)])
async def test_a_place_that_is_never_kept_is_lost(budget_s: float, tries: int) -> None:
    store = Store(kept_at_try=1_000)
    with pytest.raises(PlaceLost):
        await come_back(store.step, budget_s)
    assert len(store.budgets) == tries
