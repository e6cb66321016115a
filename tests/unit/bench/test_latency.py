"""What a table of latency says of some runs, and what so few messages cannot tell."""

from __future__ import annotations

from bench.latency import WAYS, Report, Work
from bench.latency_drivers import Outcome

WAY = WAYS[0]
NOTHING = Work((0.0, 0.0, 0.0), steps=1)


def outcome(*late_ms: float) -> tuple[Outcome, Work]:
    return Outcome([*late_ms], 0.0, 1.0, puts_failed=0, gets_failed=0, missing=0, twice=0, cpu_s=0.0), NOTHING


def cells(*runs: tuple[Outcome, Work]) -> dict[str, str]:
    report = Report(len(runs))
    report.add("100", "Go", WAY, runs)
    table = report.late[WAY]
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_a_thousandth_of_some_hundred_messages_is_not_told() -> None:
    row = cells(*[outcome(*[1.0] * 599, late) for late in (30.0, 40.0, 50.0)])
    assert row["messages"] == "1,800"
    assert row["p50, ms"] == "1.0 (1.0–1.0)"
    assert row["longest, ms"] == "40.0 (30.0–50.0)"
    assert row["p99.9 of all, ms"] == ""


def test_a_thousandth_is_that_of_all_runs_together() -> None:
    calm = outcome(*[1.0] * 6_000)
    stalled = outcome(*[1.0] * 5_980, *[50.0 + n for n in range(20)])
    row = cells(calm, calm, stalled)
    assert row["p99.9 of all, ms"] == "52.0"  # 18 of 18,000 are not less
