"""The table at the end of a run, and what makes a run fail."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, cast

import pytest

from conformance import table, test_scenarios
from conformance.languages import LANGUAGES
from conformance.scenarios import read_scenarios

Outcome = Literal["passed", "failed", "skipped"]


class Lines:
    """A terminal reporter that keeps what is written."""

    def __init__(self, *reports: pytest.TestReport) -> None:
        self.stats = {"": list(reports)}
        self.written: list[str] = []

    def section(self, title: str) -> None:
        self.written.append(title)

    def write_line(self, line: str) -> None:
        self.written.append(line)


def report(
    scenario: str, language: str, outcome: Outcome, when: Literal["setup", "call"] = "call", **more: Any
) -> pytest.TestReport:
    noted = (table.MARK, json.dumps([scenario, language, ["P-GEN-1"]]))
    return pytest.TestReport(
        f"{scenario}-{language}", ("", 0, ""), {}, outcome, None, when, user_properties=[noted], **more
    )


def test_table_has_a_line_for_each_scenario_and_a_column_for_each_language() -> None:
    lines = Lines(
        report("b", "go", "passed", "setup"),
        report("b", "go", "passed"),
        report("b", "rust", "skipped", "setup"),
        report("a", "go", "skipped", wasxfail="for a reason"),
        report("a", "rust", "passed"),
    )
    table.summarize(cast(pytest.TerminalReporter, lines), whole=True)
    assert lines.written == [
        "conformance",
        "   go     rust   proves",
        "a  known  yes    P-GEN-1",
        "b  yes    -      P-GEN-1",
        "go: of 2 scenarios 1 hold, 1 known to fail",
        "rust: of 2 scenarios 1 hold, 1 skipped",
        "2 scenarios, 1 rules",
    ]


def test_failure_shows_the_whole_table_without_being_asked() -> None:
    lines = Lines(report("a", "go", "failed"), report("b", "go", "passed"))
    table.summarize(cast(pytest.TerminalReporter, lines), whole=False)
    assert "a  NO     P-GEN-1" in lines.written


def test_run_without_scenarios_says_nothing() -> None:
    lines = Lines()
    table.summarize(cast(pytest.TerminalReporter, lines), whole=True)
    assert lines.written == []


def marked(name: str) -> dict[str, dict[str, object]]:
    """The cases with that mark, and what it says."""
    return {
        str(case.id): dict(mark.kwargs) for case in test_scenarios.cases() for mark in case.marks if mark.name == name
    }


def test_known_failure_is_expected_and_fails_the_run_if_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = read_scenarios()[0].id
    monkeypatch.setattr(test_scenarios, "known_failures", lambda: {("python", scenario): "a reason"})
    assert marked("xfail") == {f"python-{scenario}": {"strict": True, "reason": "a reason"}}


def test_scenario_of_several_tries_is_played_again_in_every_language_and_no_other_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, thrice = read_scenarios()[:2]
    monkeypatch.setattr(test_scenarios, "read_scenarios", lambda: [once, dataclasses.replace(thrice, tries=3)])
    again = marked("flaky")
    assert again == {str(case.id): {"reruns": 2} for case in test_scenarios.cases() if str(case.id).endswith(thrice.id)}
    assert len(again) >= len(LANGUAGES)
