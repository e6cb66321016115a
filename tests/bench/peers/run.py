"""Headway beside other queues on the same machine: run with `make bench-peers`, once `make bench-peers-setup` has been.

Every figure is messages per second: the median of the runs behind a warm-up, with least and most. Each peer has its own
server, started for it, with data in a folder that goes away; its own best client (drivers/); and, where it has one, its
batch mode. A run in which not every message was delivered exactly once is marked. Slow peers get fewer messages, as
many as they do in about --seconds for each phase, or in what --minutes for all together leave for it; the table says
how many.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from bench.peers import places
from bench.peers.catalogue import BOTH, CATALOGUE, GO, NODE, PROJECT, Peer
from bench.peers.contest import Cell, Contest, Run, sized
from bench.peers.places import Missing
from bench.peers.ratios import ratio_row, ratios
from bench.peers.schedule import Plan, Schedule
from bench.tables import Table, arguments, made_by, spread, write

GIVEN_UP = "given up"
PATIENCE = 6  # a phase that takes so many times as long as it should is given up
LEAST_PATIENCE_S = 20.0  # but not before
DURABILITY = {
    "everysec": "what was confirmed is fsynced within about a second",
    "always": "what was confirmed has been fsynced",
}


def library_version(peer: Peer) -> str:
    """The client's name and version, as found."""
    if not peer.library:
        return ""
    if peer.environment == PROJECT:
        return f"{peer.library} {metadata.version(peer.library)}"
    if peer.environment == NODE:
        ask = [
            str(places.program("node")),
            "-p",
            f"require('{places.NODE}/node_modules/{peer.library}/package').version",
        ]
    elif peer.environment == GO:
        text = (places.GO_DRIVERS / "go.mod").read_text()
        return next(line.strip() for line in text.splitlines() if peer.library in line)
    else:
        code = f"import importlib.metadata as m; print(m.version({peer.library!r}))"
        ask = [str(places.python_of(peer.environment)), "-c", code]
    return f"{peer.library} {subprocess.run(ask, capture_output=True, check=True, text=True).stdout.strip()}"


def runs_of(peer: Peer, durability: str, cell: Cell, options: Namespace, schedule: Schedule) -> tuple[list[Run], str]:
    """The runs behind a small one that warms up, and the server's version. Each tells how many messages fit into the
    next."""
    with tempfile.TemporaryDirectory(prefix="hw-") as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with peer.server(folder / "server", durability) as server:
            warm_up = replace(cell, count=min(cell.count, options.warm_up))
            contest = Contest(peer, warm_up, server.address, folder)
            runs = [contest.run()]
            for left in range(options.runs, 0, -1):
                seconds = schedule.phase_s(left, runs[-1].aside_s)
                fitting = sized(replace(cell, patience_s=contest.cell.patience_s), runs[-1], seconds)
                contest.cell = replace(fitting, patience_s=max(LEAST_PATIENCE_S, PATIENCE * seconds))
                runs.append(contest.run())
            return runs[1:], server.version


def last_words(log: str) -> str:
    """The last line that begins a sentence, which in a traceback is the error."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith((" ", "\t", ">"))]
    return lines[-1] if lines else "no word"


def row(name: str, runs: Sequence[Run]) -> list[str]:
    """A line of the table."""
    phases = ([run.put for run in runs], [run.take for run in runs], [run.both for run in runs])
    figures = [spread(rates) if all(rates) else GIVEN_UP for rates in phases]
    faulty = [run.fault for run in runs if run.fault]
    verdict = f"**{len(faulty)} of {len(runs)} runs: {faulty[0]}**" if faulty else f"in {len(runs)} of {len(runs)} runs"
    least, most = min(run.count for run in runs), max(run.count for run in runs)
    return [name, f"{least:,}" if least == most else f"{least:,}–{most:,}", *figures, verdict]


def names_of(options: Namespace, durability: str) -> list[str]:
    """The peers that are asked for and can be as durable."""
    return [name for name in options.peers if durability in CATALOGUE[name].durabilities]


class Report:
    """All tables, written anew when one is finished: a run takes hours, and may be ended early."""

    def __init__(self, options: Namespace, schedule: Schedule) -> None:
        self.options, self.schedule = options, schedule
        self.about = Table("The peers", ["peer", "server", "client", "mode"], silent=True)
        self.missing = Table("Left out", ["peer", "why"])
        self.ratios = ratios()
        self.tables: list[Table] = []
        self._described: set[str] = set()

    def measure(self, durability: str, size: int, clients: int) -> None:
        """One table."""
        table = Table(
            f"{durability}, {size} B, {clients} client{'s' if clients > 1 else ''}",
            ["peer", "messages", "put/s", "get + ack/s", "end to end/s", "each exactly once"],
            f"{DURABILITY[durability].capitalize()}. Median (least–most) of {self.options.runs} runs.",
        )
        self.tables.append(table)
        cell = Cell(self.options.messages, size, clients, LEAST_PATIENCE_S)
        names = names_of(self.options, durability)
        runs = {name: self._measure(table, name, durability, cell) for name in names}
        ratio = ratio_row(table.title, runs)
        if ratio is not None:
            self.ratios.add(*ratio)
        tables = [self.about, *self.tables, self.ratios, self.missing]
        write(self.options.markdown, self.options.section, made_by("bench-peers"), tables)

    def _measure(self, table: Table, name: str, durability: str, cell: Cell) -> list[Run]:
        """One peer's line; no runs if it could not be measured."""
        peer = CATALOGUE[name]
        self.schedule.begin_line()
        try:
            library = library_version(peer)
            runs, version = runs_of(peer, durability, cell, self.options, self.schedule)
        except (Missing, AssertionError, OSError, subprocess.SubprocessError) as error:
            table.add(*[name, *["–"] * 4, "not measured"])
            print(f"{name}: {error}", file=sys.stderr)
            reason = str(error) if isinstance(error, Missing) else f"failed: {last_words(str(error))}"
            self.missing.add(name, f"{reason} ({table.title})")
            return []
        table.add(*row(name, runs))
        if name not in self._described:
            self.about.add(name, version, library or "our own", peer.mode)
            self._described.add(name)
        return runs


def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=CATALOGUE, default=list(CATALOGUE), metavar="NAME", help="these")
    parser.add_argument("--durability", nargs="+", choices=BOTH, default=BOTH, help="of the server")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 1024], help="bytes of a message")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 50], help="of each kind")
    parser.add_argument("--messages", type=int, default=200_000, help="the most of a run")
    parser.add_argument("--warm-up", type=int, default=2_000, metavar="MESSAGES", help="of the run that warms up")
    parser.add_argument("--runs", type=int, default=5, help="behind the warm-up")
    parser.add_argument("--seconds", type=float, default=20.0, help="about as long may a phase take, on average")
    parser.add_argument("--minutes", type=float, help="for all, in place of --seconds")
    parser.add_argument("--section", default="bench-peers", metavar="NAME", help="of the --markdown file")
    options = parser.parse_args()
    tables = list(itertools.product(options.durability, options.sizes, options.clients))
    lines = sum(len(names_of(options, durability)) for durability, *_ in tables)
    plan = Plan(lines=lines, runs=options.runs, seconds=options.seconds, minutes=options.minutes)
    print(plan.told(), flush=True)
    report = Report(options, Schedule(plan, time.monotonic))
    for durability, size, clients in tables:
        report.measure(durability, size, clients)


if __name__ == "__main__":
    main()
