"""Headway beside other queues on the same machine: run with `make bench-peers`, once `make bench-peers-setup` has been.

Every figure is messages per second: the median of the runs behind a warm-up, with least and most. Each peer has its own
server, started for it, with data in a folder that goes away; its own best client (drivers/); and, where it has one, its
batch mode. The peers of a table run in turn, each while the others' servers do nothing. A run in which not every
message was delivered exactly once is marked. Slow peers get fewer messages, as many as they do in about --seconds for
each phase, or in what --minutes for all together leave for it; the table says how many.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from bench.peers import places
from bench.peers.catalogue import BOTH, CATALOGUE, DURABILITY, GO, NODE, PROJECT, Peer
from bench.peers.contest import CLIENTS, SIZES, Cell, Contest, Run, sized
from bench.peers.driving import BATCH, UNCONFIRMED
from bench.peers.kept import Kept, Round
from bench.peers.places import Missing
from bench.peers.ratios import Mode, ratio_row, ratios
from bench.peers.schedule import Plan, Schedule
from bench.tables import GROUPED, Table, arguments, made_by, processor, settings, spread, today, write

GIVEN_UP = "given up"
PATIENCE = 6  # a phase that takes so many times as long as it should is given up
LEAST_PATIENCE_S = 20.0  # but not before


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


@dataclass(frozen=True)
class Entry:
    """A peer that takes part, how many messages each client of its may have unconfirmed, and how many processes its
    workers are (0: as many as suit it best)."""

    peer: str
    unconfirmed: int
    processes: int = 0

    def told(self, options: Namespace) -> str:
        """Its name, with the numbers where they were asked for."""
        is_one = len(options.unconfirmed) == 1 or not CATALOGUE[self.peer].has_unconfirmed
        unconfirmed = "" if is_one else f", {self.unconfirmed:,} unconfirmed"
        return f"{self.peer}{unconfirmed}" + (f", {self._told_processes('process')}" if self.processes else "")

    def chosen(self) -> Peer:
        """With so many processes, or one for each client if these are fewer."""
        peer = CATALOGUE[self.peer]
        return replace(peer, consumers=lambda clients: min(clients, self.processes)) if self.processes else peer

    def mode(self, batch: int) -> str:
        """How it is driven."""
        ahead = max(1, self.unconfirmed // batch)
        workers = self._told_processes("worker process") if self.processes else CATALOGUE[self.peer].workers
        return CATALOGUE[self.peer].mode.format(
            batch=batch, unconfirmed=f"{self.unconfirmed:,}", ahead=ahead, workers=workers
        )

    def _told_processes(self, noun: str) -> str:
        return f"{self.processes} {noun}{'es' if self.processes > 1 else ''}"


class Line:
    """One peer, in one mode, in one table: its server, from when it begins until it is closed, and its runs."""

    def __init__(self, entry: Entry, durability: str, cell: Cell, options: Namespace, schedule: Schedule) -> None:
        self.entry, self.name, self.peer = entry, entry.told(options), entry.chosen()
        self.runs: list[Run] = []
        self._runs_to_begin = options.runs
        self.library = self.version = ""
        self.why_not: Exception | None = None  # what kept it from being measured
        self._durability, self._cell, self._options, self._schedule = durability, cell, options, schedule
        self._held = ExitStack()

    def begin(self) -> None:
        """Starts its server, and warms up by a small run, which tells how many messages fit into the next."""
        self._schedule.begin_line()
        self.library = library_version(self.peer)
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="hw-")))
        (folder / "server").mkdir()
        server = self._held.enter_context(self.peer.server(folder / "server", self._durability))
        self.version = server.version
        warm_up = replace(self._cell, count=min(self._cell.count, self._options.warm_up))
        self._contest = Contest(self.peer, warm_up, server.address, folder)
        self._last = self._contest.run()

    def go(self) -> None:
        """One more run, which tells the same."""
        self._runs_to_begin -= 1
        seconds = self._schedule.begin_run(self._last.aside_s)
        fitting = sized(replace(self._cell, patience_s=self._contest.cell.patience_s), self._last, seconds)
        self._contest.cell = replace(fitting, patience_s=max(LEAST_PATIENCE_S, PATIENCE * seconds))
        self._last = self._contest.run()
        self.runs.append(self._last)

    def have(self, run: Run) -> None:
        """One run less to begin: it was kept."""
        self._runs_to_begin -= 1
        self._schedule.leave_out(1)
        self.runs.append(run)

    def attempt(self, act: Callable[[], None]) -> None:
        """Does it, unless the line could not be measured so far. If it fails, that is how it is from then on."""
        if self.why_not is not None:
            return
        try:
            act()
        except (Missing, AssertionError, OSError, subprocess.SubprocessError) as error:
            self.why_not = error
            self._schedule.leave_out(self._runs_to_begin)
            self.runs = []
            print(f"{self.name}: {error}", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """Its server is gone."""
        self._held.close()


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


def entries_of(options: Namespace, durability: str) -> list[Entry]:
    """Those that are asked for and can be as durable."""
    peers = [name for name in options.peers if durability in CATALOGUE[name].durabilities]
    return [
        Entry(name, unconfirmed, processes)
        for name in peers
        for unconfirmed in options.unconfirmed[: None if CATALOGUE[name].has_unconfirmed else 1]
        for processes in (options.processes if CATALOGUE[name].workers else [0])
    ]


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
        cell = Cell(self.options.messages, size, clients, LEAST_PATIENCE_S, self.options.batch)
        lines = [
            Line(entry, durability, replace(cell, unconfirmed=entry.unconfirmed), self.options, self.schedule)
            for entry in entries_of(self.options, durability)
        ]
        with ExitStack() as stack:
            for line in lines:
                stack.callback(line.close)
                line.attempt(line.begin)
            kept = Kept(self.options.keep, self._terms(table, lines))
            rounds = kept.rounds()[: self.options.runs]
            for line, finished in itertools.product(lines, rounds):
                line.have(finished.runs[line.name])
            # In turn: so all have what the host gives, which changes.
            for number in range(len(rounds), self.options.runs):
                print(f"{table.title}: run {number + 1} of {self.options.runs}", file=sys.stderr)
                for line in lines:
                    line.attempt(line.go)
                if not any(line.why_not for line in lines):
                    rounds.append(Round(today(), {line.name: line.runs[-1] for line in lines}))
                    kept.add(rounds[-1])
        days = sorted({finished.day for finished in rounds})
        if len(days) > 1:
            table.note += f" They were made from {days[0]} to {days[-1]}."
        for line in lines:
            self._tell(table, line)
        ratio = ratio_row(table.title, [Mode(line.entry.peer, line.name, line.runs) for line in lines])
        if ratio is not None:
            self.ratios.add(*ratio)
        tables = [self.about, *self.tables, self.ratios, self.missing]
        write(self.options.markdown, self.options.section, made_by("bench-peers"), tables, GROUPED)

    def _terms(self, table: Table, lines: Sequence[Line]) -> dict[str, object]:
        """What rounds must have been measured with to count as this table's."""
        return {
            "table": table.title,
            "processor": processor(),
            "messages": self.options.messages,
            "batch": self.options.batch,
            "warm_up": self.options.warm_up,
            "seconds": self.schedule.plan.phase_s(),
            "settings": settings(),
            "peers": {
                line.name: [line.version, line.library, line.entry.mode(self.options.batch), line.entry.unconfirmed]
                for line in lines
            },
        }

    def _tell(self, table: Table, line: Line) -> None:
        if line.why_not is not None:
            table.add(*[line.name, *["–"] * 4, "not measured"])
            why_not = str(line.why_not)
            reason = why_not if isinstance(line.why_not, Missing) else f"failed: {last_words(why_not)}"
            self.missing.add(line.name, f"{reason} ({table.title})")
            return
        table.add(*row(line.name, line.runs))
        if line.name not in self._described:
            self.about.add(line.name, line.version, line.library or "our own", line.entry.mode(self.options.batch))
            self._described.add(line.name)


def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=CATALOGUE, default=list(CATALOGUE), metavar="NAME", help="these")
    parser.add_argument("--durability", nargs="+", choices=BOTH, default=BOTH, help="of the server")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of a message")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS, help="of each kind")
    parser.add_argument("--messages", type=int, default=200_000, help="the most of a run")
    parser.add_argument("--batch", type=int, default=BATCH, help="messages that go together, where a peer does that")
    parser.add_argument(
        "--unconfirmed", nargs="+", type=int, default=[UNCONFIRMED], help="messages of each client; each makes a line"
    )
    parser.add_argument(
        "--processes",
        nargs="+",
        type=int,
        default=[0],
        help="of a framework's workers, 0 for its best; each makes a line",
    )
    parser.add_argument("--warm-up", type=int, default=2_000, metavar="MESSAGES", help="of the run that warms up")
    parser.add_argument("--runs", type=int, default=5, help="behind the warm-up")
    parser.add_argument("--seconds", type=float, default=20.0, help="about as long may a phase take, on average")
    parser.add_argument("--minutes", type=float, help="for all, in place of --seconds")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write each round into it, and go on behind what is there"
    )
    parser.add_argument("--section", default="bench-peers", metavar="NAME", help="of the --markdown file")
    options = parser.parse_args()
    tables = list(itertools.product(options.durability, options.sizes, options.clients))
    lines = sum(len(entries_of(options, durability)) for durability, *_ in tables)
    plan = Plan(lines=lines, runs=options.runs, seconds=options.seconds, minutes=options.minutes)
    print(plan.told(), flush=True)
    report = Report(options, Schedule(plan, time.monotonic))
    for durability, size, clients in tables:
        report.measure(durability, size, clients)


if __name__ == "__main__":
    main()
