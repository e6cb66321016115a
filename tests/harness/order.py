"""In which order tests run on several processes: long ones first, so that nobody waits for one at the end; and of those
that keep the machine busy only a few at a time, for they would be in each other's way."""

from __future__ import annotations

import pytest


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests. Those marked `slow` are dealt to less than half of the processes, those marked `long`, which
    mostly wait, to the others; all others stand behind them in their order, by which tests that share fixtures stand
    together. Those of an `xdist_group`, which would wait for each other, begin one part as far as it holds them.
    `--dist worksteal` gives each process such a part, in the same sizes; who is done takes from the end of others'
    parts."""
    busy = [item for item in items if item.get_closest_marker("slow")]
    busy.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    idle = [item for item in items if item.get_closest_marker("long") and not item.get_closest_marker("slow")]
    known = {*busy, *idle}
    short = [item for item in items if item not in known]
    of_busy = max((processes - 1) // 2, 1)
    of_idle = max(processes - of_busy, 1)
    parts: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number in range(of_busy):
        parts[number] += busy[number * len(busy) // of_busy : (number + 1) * len(busy) // of_busy]
    for number in range(of_idle):
        parts[number - of_idle] += idle[number::of_idle]
    ordered: list[pytest.Item] = []
    for number, own in enumerate(parts):
        size = (len(items) - len(ordered)) // (processes - number)
        taken = max(size - len(own), 0)
        ordered += own + short[:taken]
        del short[:taken]
    return ordered + short
