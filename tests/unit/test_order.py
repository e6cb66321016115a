"""In which order the processes of a run begin its tests."""

from __future__ import annotations

from typing import Any

import pytest

from harness.order import dealt


class Item:
    """Every tenth test is slow, and every tenth long; every thirtieth is slow and waits for its like."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mark = {0: "slow", 5: "long"}.get(number % 10)
        self.grouped = number % 30 == 0

    def get_closest_marker(self, name: str) -> object | None:
        """As pytest's items have it."""
        return name if name == self.mark or (name == "xdist_group" and self.grouped) else None


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 100, 1_003])
def test_long_tests_begin_each_part_and_those_that_are_busy_only_some(processes: int, count: int) -> None:
    items: list[Any] = [Item(number) for number in range(count)]
    ordered: list[Any] = dealt(list(items), processes)
    assert sorted(one.number for one in ordered) == list(range(count))
    parts, left = [], ordered
    for number in range(processes):
        size = len(left) // (processes - number)
        parts.append(left[:size])
        left = left[size:]
    for part in parts:
        begin = [one for one in part if one.mark is not None]
        assert part[: len(begin)] == begin
    if processes > 2 and count >= 100:
        assert 0 < sum(any(one.mark == "slow" for one in part) for part in parts) < processes / 2


def test_those_that_wait_for_each_other_are_of_one_part() -> None:
    items: list[Any] = [Item(number) for number in range(1_000)]
    ordered: list[Any] = dealt(items, 5)
    assert [one.number for one in ordered[:34]] == list(range(0, 1_000, 30))
    assert {one.mark for one in ordered[200:233]} == {"slow"}
    assert not any(one.grouped for one in ordered[34:])
