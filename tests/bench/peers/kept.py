"""Rounds that are kept, so that a benchmark of many hours can be broken off, and gone on with another day.

A round is one run of each peer of a table. A file has a line of JSON for each that was finished, with what it was
measured with. Only rounds that were measured with the same count together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers.contest import Run


@dataclass(frozen=True)
class Round:
    """The runs by the name of who ran, and the day."""

    day: str
    runs: Mapping[str, Run]


class Kept:
    """What a file has of one table's rounds; `terms` is all that must be the same. Nothing is kept without a file."""

    def __init__(self, path: Path | None, terms: Mapping[str, Any]) -> None:
        self._path, self._terms = path, json.loads(json.dumps(terms))

    def rounds(self) -> list[Round]:
        """Those that were measured with these terms, the oldest first."""
        if self._path is None or not self._path.exists():
            return []
        entries = map(json.loads, self._path.read_text().splitlines())
        return [
            Round(entry["day"], {name: Run(**run) for name, run in entry["runs"].items()})
            for entry in entries
            if entry["terms"] == self._terms
        ]

    def add(self, finished: Round) -> None:
        """Behind the others."""
        if self._path is None:
            return
        runs = {name: asdict(run) for name, run in finished.runs.items()}
        with self._path.open("a") as file:
            file.write(json.dumps({"day": finished.day, "terms": self._terms, "runs": runs}) + "\n")
