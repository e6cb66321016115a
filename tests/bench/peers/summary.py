"""Headway beside every peer at a glance: what docs/benchmarks.md measured of each, as one table for each durability.

A peer is compared with Headway in the better of its modes, by Go if it is itself and else by Python, in one and the
same table: the one in which it had most messages, and of several such the latest. Tables with another size of batches,
or of what is unconfirmed, than the default do not count, nor do those in which a message was missing. Who did some of
them twice counts, for that was more work, not less, and it is told. Each name leads to the heading that its tables
stand under. Measures nothing: reads a document and writes into it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.catalogue import BOTH, CATALOGUE, DURABILITY
from bench.peers.contest import CLIENTS, SIZES
from bench.peers.ratios import OURS, is_by_go
from bench.tables import GROUPED, Table, anchor, put_section

SECTION = "bench-peers-summary"
_MEASURED = re.compile(
    r"<!-- (bench-peers[\w-]*) -->\n`(?P<command>.+)`, (?P<day>[\d-]+): .*\n(?P<tables>(?:.*\n)*?)<!-- /\1 -->"
)
_OTHER_BATCHES = re.compile(r"--(batch|unconfirmed) ")
_TABLE = re.compile(
    rf"^{'#' * GROUPED} (?P<durability>\w+), (?P<size>\d+) B, (?P<clients>\d+) clients?\n"
    r"(?P<rows>(?:(?!#).*\n)*)",
    re.MULTILINE,
)
_OWN = re.compile(rf"<!-- {SECTION} -->.*?<!-- /{SECTION} -->", re.DOTALL)
_HEADING = re.compile(rf"^#{{2,{GROUPED - 1}}} (.+)$", re.MULTILINE)
_ROW = re.compile(
    r"^\| (?P<peer>.+?) \| (?P<messages>[\d,]+)\S* \| (?P<rates>[^a-z]+)"
    r" \| (?:in (?P<exact>\d+) of (?P=exact) runs|\*\*.* runs: (?:\d+ more than once(?:; )?){1,2}\*\*) \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Shape:
    """What a table was measured with."""

    durability: str
    size: int
    clients: int


@dataclass(frozen=True)
class Beside:
    """Headway's medians ÷ those of a peer in one table, for put, get + ack and end to end; the least number of messages
    of the peer's runs, the day, whether the peer did each of them once, and the heading that the table stands under."""

    messages: int
    day: str
    ratios: tuple[float, ...]
    exact: bool = True
    heading: str = ""


def compared(markdown: str) -> dict[str, dict[Shape, Beside]]:
    """By the peer's name, what counts of each shape that it was measured in."""
    found: dict[str, dict[Shape, Beside]] = defaultdict(dict)
    for peer, shape, beside in _everything(markdown):
        before = found[peer].get(shape)
        if before is None or (before.messages, before.day) <= (beside.messages, beside.day):
            found[peer][shape] = beside
    return found


def _everything(markdown: str) -> Iterator[tuple[str, Shape, Beside]]:
    markdown = _OWN.sub("", markdown)
    for section in _MEASURED.finditer(markdown):
        if _OTHER_BATCHES.search(section["command"]):
            continue
        headings = _HEADING.findall(markdown, 0, section.start())
        heading = headings[-1] if headings else ""
        for table in _TABLE.finditer(section["tables"]):
            shape = Shape(table["durability"], int(table["size"]), int(table["clients"]))
            rows = list(_ROW.finditer(table["rows"]))
            ours = {row["peer"]: _medians(row) for row in rows if row["peer"] in OURS and row["exact"]}
            for row in rows:
                alike = [rates for mode, rates in ours.items() if is_by_go(mode) == is_by_go(row["peer"])]
                if alike and row["peer"] not in OURS:
                    best = [max(phase) for phase in zip(*alike, strict=True)]
                    ratios = tuple(mine / theirs for mine, theirs in zip(best, _medians(row), strict=True))
                    messages, is_exact = int(_number(row["messages"])), row["exact"] is not None
                    yield row["peer"], shape, Beside(messages, section["day"], ratios, is_exact, heading)


def _medians(row: re.Match[str]) -> list[float]:
    return [_number(rate) for rate in row["rates"].split(" | ")]


def _number(told: str) -> float:
    """The median, where a range stands behind it."""
    return float(told.partition(" ")[0].replace(",", ""))


def tables(found: Mapping[str, Mapping[Shape, Beside]]) -> list[Table]:
    """One for each durability, with a line for each peer that can be so durable, in the catalogue's order."""
    told = []
    for durability in BOTH:
        table = Table(
            f"Headway ÷ each of the others, {durability}",
            ["peer", "messages", "put", "get + ack", "end to end", "measured"],
            f"{DURABILITY[durability].capitalize()}. Least–most of 256 B and 1 KB, each with 1 client and with 50.",
            silent=True,
        )
        for peer in CATALOGUE:
            measured = [beside for shape, beside in found.get(peer, {}).items() if shape.durability == durability]
            if measured:
                table.add(*_line(peer, measured))
        told.append(table)
    return told


def _line(peer: str, measured: Sequence[Beside]) -> list[str]:
    shapes = len(SIZES) * len(CLIENTS)
    twice = sum(not beside.exact for beside in measured)
    notes = [f"{len(measured)} of {shapes}"] if len(measured) < shapes else []
    notes += [f"some more than once in {twice} of {len(measured)}"] if twice else []
    told = _link(peer, measured[0].heading)
    return [
        f"{told} ({', '.join(notes)})" if notes else told,
        _from_to([f"{messages:,}" for messages in sorted(beside.messages for beside in measured)], "–"),
        *(
            _from_to([_ratio(ratio) for ratio in sorted(phase)], "–")
            for phase in zip(*(beside.ratios for beside in measured), strict=True)
        ),
        _from_to(sorted(beside.day for beside in measured), " to "),
    ]


def _link(peer: str, heading: str) -> str:
    """To where the document has the peer's tables."""
    return f"[{peer}](#{anchor(heading)})" if heading else peer


def _ratio(ratio: float) -> str:
    """Three digits that count."""
    return f"{ratio:,.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def _from_to(told: Sequence[str], between: str) -> str:
    """The first and the last of what is in order."""
    return told[0] if told[0] == told[-1] else f"{told[0]}{between}{told[-1]}"


def summary(markdown: str) -> str:
    """The tables, as they stand in the document."""
    return "\n".join(table.markdown() for table in tables(compared(markdown)))


def main() -> None:
    """Writes it into the document."""
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("document", type=Path, help="with the tables of `make bench-peers`")
    path = parser.parse_args().document
    put_section(path, SECTION, summary(path.read_text()))
    print(f"{path}: {SECTION}", file=sys.stderr)


if __name__ == "__main__":
    main()
