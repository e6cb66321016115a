"""In which order the processes of a run begin its tests."""

from __future__ import annotations

from typing import Any

import pytest

from harness.order import dealt


class Item:
    """Every tenth test is slow, and every tenth long."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mark = {0: "slow", 5: "long"}.get(number % 10)

    def get_closest_marker(self, name: str) -> bool:
        """As pytest's items have it."""
        return name == self.mark


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 100, 1_003])
def test_long_tests_begin_each_part_and_those_that_are_busy_only_some(processes: int, count: int) -> None:
    items: list[Any] = [Item(number) for number in range(count)]
    ordered: list[Any] = dealt(list(items), processes)
    assert sorted(one.number for one in ordered) == list(range(count))
    parts, left = [], ordered
    for number in range(processes):
        size = len(left) // (processes - number)
        parts.append([one.mark for one in left[:size]])
        left = left[size:]
    for part in parts:
        begin = [mark for mark in part if mark is not None]
        assert part[: len(begin)] == begin
    if processes > 2 and count >= 100:
        assert 0 < sum("slow" in part for part in parts) < processes / 2
