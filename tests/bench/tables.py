"""Tables of measured figures: shown at once, and written as Markdown where `--markdown FILE` says."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

SETTINGS = "BENCH_SETTINGS"
GROUPED = 4  # the level of headings in groups that have headings of their own
FILES = ("--markdown", "--keep")  # where figures go: nothing of what they are


@dataclass
class Table:
    """Columns, and rows of as many cells. `note` says what was measured, and how. A table that is `silent` is only
    written."""

    title: str
    columns: Sequence[str]
    note: str = ""
    silent: bool = False
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """A row; printed at once, because the next may take minutes."""
        assert len(cells) == len(self.columns), cells
        if not self.rows and not self.silent:
            print(f"\n{self.title}\n{self.note}" if self.note else f"\n{self.title}")
            print(" | ".join(self.columns))
        self.rows.append(cells)
        if not self.silent:
            print(" | ".join(cells), flush=True)

    def markdown(self, level: int = 3) -> str:
        """A heading of this level, the note, and the table, if it has rows."""
        lines = [f"{'#' * level} {self.title}", "", *([self.note, ""] if self.note else [])]
        lines += [_line(self.columns), _line(["---"] * len(self.columns)), *map(_line, self.rows)]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Median and range of some runs; figures above 100 without decimals."""
    digits = 0 if min(values) >= 100 else 1
    median, least, most = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least}–{most})"


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments that all benchmarks with tables have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into this file, too")
    return parser


def no_arguments(description: str) -> None:
    """For a benchmark that has none: tells of itself when asked for `--help`, and does not run with what it does not
    know."""
    argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()


def settings() -> dict[str, str]:
    """What services are set to besides, by the environment: `BENCH_SETTINGS="HEADWAY_ACCEPTORS=1"`, several with spaces
    between. Raises ValueError for what is no setting."""
    pairs = [word.partition("=") for word in shlex.split(os.environ.get(SETTINGS, ""))]
    for name, is_set, value in pairs:
        if not is_set or not name.startswith("HEADWAY_"):
            raise ValueError(f"{SETTINGS}: {name}{is_set}{value} is not HEADWAY_<NAME>=<value>")
    return {name: value for name, _, value in pairs}


def made_by(target: str, module: str = "") -> str:
    """What makes these figures anew: a target of make, or, where it has none or was run with options, a module. With
    the settings that they were made with."""
    chosen = os.environ.get(SETTINGS, "")
    before = f"{SETTINGS}={shlex.quote(chosen)} " if chosen else ""
    words = sys.argv[1:]
    for option in FILES:
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    if target and not words:
        return f"{before}make {target}"
    told = shlex.join(words)
    if not module:
        return f"{before}make {target} ARGS={shlex.quote(told)}"
    return f"cd tests && {before}../.venv/bin/python -m {module} {told}".rstrip()


def write(path: Path | None, section: str, origin: str, tables: Sequence[Table], level: int = 3) -> None:
    """Replaces the section of this name in a Markdown file with these tables, whose headings have this level, and how
    they were made. Nothing without a file, or without a table that has rows."""
    body = "\n".join(table.markdown(level) for table in tables if table.rows)
    if path is None or not body:
        return
    put_section(path, section, f"`{origin}`, {machine()}.\n\n{body}")


def put_section(path: Path, section: str, body: str) -> None:
    """Replaces what stands between `<!-- section -->` and `<!-- /section -->`. Appends it if the file has none."""
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    whole = f"{begin}\n{body}{end}"
    text = path.read_text() if path.exists() else ""
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    text = pattern.sub(lambda _: whole, text) if pattern.search(text) else f"{text.rstrip()}\n\n{whole}\n".lstrip()
    path.write_text(text)


def anchor(heading: str) -> str:
    """What a link within a document names a heading by, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def today() -> str:
    """The day, in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def processor() -> str:
    """The cores that there are, and what they are."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*: (.*)", info.read_text())):
        model = found[1]
    return f"{os.cpu_count()} cores ({model})"


def machine() -> str:
    """What this ran on, in one line: with the load of the last minute, which is partly its own."""
    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return (
        f"{today()}: {processor()}, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, grpcio {version('grpcio')}, redis-py {version('redis')}{load}"
    )
