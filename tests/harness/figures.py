"""Figures that tests measure: noted with the test's report, and shown together when the run ends, however many
processes it had. A pytest plugin; `tests/conftest.py` has it for every test."""

from collections.abc import Callable, Iterable

import pytest

_MARK = "figure: "
Figure = Callable[[str, str], None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Notes a measured figure: `figure("woken after", "3 ms")`."""

    def note(name: str, value: str) -> None:
        record_property(_MARK + name, value)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures, if there are any."""
    rows = _rows(report for reports in terminalreporter.stats.values() for report in reports)
    if rows:
        terminalreporter.section("figures")
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for name, value, test in rows:
            terminalreporter.write_line(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {test}")


def _rows(reports: Iterable[object]) -> list[tuple[str, str, str]]:
    """(name, value, test), by test. Every phase of a test reports what was noted so far; each figure counts once."""
    noted: dict[str, list[tuple[str, str]]] = {}
    for report in reports:
        if not isinstance(report, pytest.TestReport):
            continue  # warnings, and what was not collected
        found = [(key.removeprefix(_MARK), str(value)) for key, value in report.user_properties if _MARK in key]
        if len(found) > len(noted.get(report.nodeid, ())):
            noted[report.nodeid] = found
    return [(name, value, node.rpartition("::")[2]) for node in sorted(noted) for name, value in noted[node]]
