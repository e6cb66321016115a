"""In which order tests run on several processes: long ones first, so that nobody waits for one at the end."""

from __future__ import annotations

import pytest


def is_long(item: pytest.Item) -> bool:
    """Whether it is marked as taking seconds."""
    return any(item.get_closest_marker(name) for name in ("slow", "long"))


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests: long ones dealt to the processes in turn, the others behind them in their order, by which tests
    that share fixtures stand together. `--dist worksteal` gives each process such a part, in the same sizes; who is
    done takes from the end of others' parts."""
    long: list[pytest.Item] = []
    short: list[pytest.Item] = []
    for item in items:
        (long if is_long(item) else short).append(item)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        own = long[number::processes]
        size = (len(items) - len(ordered)) // (processes - number)
        taken = max(size - len(own), 0)
        ordered += own + short[:taken]
        del short[:taken]
    return ordered + short
