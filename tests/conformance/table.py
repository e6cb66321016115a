"""The table of scenarios and languages at the end of a run: which hold, and which rules they prove."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest

MARK = "conformance"
_PASSED, _FAILED, _KNOWN, _SKIPPED = "yes", "NO", "known", "-"
_WORDS = {"passed": _PASSED, "failed": _FAILED, "skipped": _SKIPPED}


def summarize(reporter: pytest.TerminalReporter, *, whole: bool) -> None:
    """Prints the table if it is asked for or something failed, and how many hold in each language, if any were run."""
    found, proved = _results(report for reports in reporter.stats.values() for report in reports)
    if not found:
        return
    languages = sorted({language for _, language in found})
    reporter.section("conformance")
    if whole or _FAILED in found.values():
        width = max(len(scenario) for scenario in proved)
        columns = {language: max(len(language), len(_KNOWN)) for language in languages}
        reporter.write_line(f"{'':<{width}}  {'  '.join(f'{name:<{columns[name]}}' for name in languages)}  proves")
        for scenario, rules in proved.items():
            cells = (f"{found.get((scenario, name), ''):<{columns[name]}}" for name in languages)
            reporter.write_line(f"{scenario:<{width}}  {'  '.join(cells)}  {' '.join(rules)}")
    for language in languages:
        words = Counter(word for (_, each), word in found.items() if each == language)
        told = {
            "hold": words[_PASSED],
            "fail": words[_FAILED],
            "known to fail": words[_KNOWN],
            "skipped": words[_SKIPPED],
        }
        counts = ", ".join(f"{count} {what}" for what, count in told.items() if count or what == "hold")
        reporter.write_line(f"{language}: of {words.total()} scenarios {counts}")
    distinct = {rule for rules in proved.values() for rule in rules}
    reporter.write_line(f"{len(proved)} scenarios, {len(distinct)} rules")


def _results(reports: Iterable[object]) -> tuple[dict[tuple[str, str], str], dict[str, list[str]]]:
    """(scenario, language) → word, and scenario → its rules, in the order of the suite's files."""
    words: dict[tuple[str, str], str] = {}
    proved: dict[str, list[str]] = {}
    for report in reports:
        noted = next((value for key, value in getattr(report, "user_properties", ()) if key == MARK), None)
        if noted is None or not isinstance(report, pytest.TestReport):
            continue
        scenario, language, rules = json.loads(str(noted))
        proved[scenario] = rules
        if report.outcome not in _WORDS:
            continue  # it was tried once more
        is_last_word = report.when == "call" or report.outcome != "passed"
        if is_last_word and words.get((scenario, language)) != _FAILED:
            is_known = report.outcome == "skipped" and hasattr(report, "wasxfail")
            words[scenario, language] = _KNOWN if is_known else _WORDS[report.outcome]
    return words, dict(sorted(proved.items()))
