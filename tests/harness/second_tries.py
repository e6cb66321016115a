"""Why tests were tried again: a test that fails now and then tells of a defect, in it or in what it tests, and only the
first try knows of which."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how each first try failed that a second one has covered, too."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
