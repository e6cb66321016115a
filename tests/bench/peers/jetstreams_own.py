"""JetStream by the benchmark that its makers wrote (`nats bench`), in turn with our driver of JetStream and Headway's
Go client. Run as `cd tests && ../.venv/bin/python -m bench.peers.jetstreams_own`, once `make bench-peers-setup` has
been. Prints a table; judges nothing.

The same server and stream as in the other tables, as many messages, clients and unconfirmed. The program's rates are
its own: from the first message until the last one has come, whether or not it is acknowledged, and it looks at none. So
its server is asked afterwards whether all were acknowledged.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

from bench.peers import places, servers
from bench.peers.catalogue import BOTH, CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.peers.driving import BATCH, UNCONFIRMED
from bench.tables import GROUPED, Table, arguments, made_by, spread, write
from harness import processes
from harness.conditions import eventually_sync

PROGRAM = "nats"
STREAM, SUBJECT = "benchstream", "benchsubject"  # the program's own names
PATIENCE_S = 120.0
LISTENS_S = 1.0  # a consumer of the program has begun
JETSTREAM, HEADWAY = "NATS JetStream, Go", "Headway, Go"
PHASES = ("put", "get + ack", "end to end")
_RATE = re.compile(r"stats: ([\d,]+) msgs/sec")

Rates = tuple[float, float, float]


class Program:
    """The program, on a server for it."""

    def __init__(self, address: str, cell: Cell, folder: Path) -> None:
        self._folder = folder
        # By itself it gives up after 5 s, which 50,000 unconfirmed messages take where each is fsynced.
        patience = ("--timeout", f"{PATIENCE_S:.0f}s")
        self._begin = [str(places.program(PROGRAM)), "--server", address, "--no-context", *patience]
        self._cell = cell

    def _told(self, *words: str) -> str:
        done = subprocess.run([*self._begin, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """One of its own for every phase, as the drivers of the other tables have; a work queue in files."""
        self._told(
            *("stream", "add", STREAM, "--subjects", SUBJECT, "--storage", "file", "--retention", "work", "--defaults")
        )
        try:
            yield
        finally:
            self._told("stream", "rm", STREAM, "--force")

    def _bench(self, *words: str) -> list[str]:
        cell = self._cell
        shape = ("--clients", str(cell.clients), "--msgs", str(cell.count), "--size", f"{cell.size}B")
        return ["bench", "js", *words, *shape, "--batch", str(cell.unconfirmed), "--no-progress"]

    def _published(self) -> float:
        return _rate(self._told(*self._bench("pub", "async", SUBJECT)))

    def _is_empty(self) -> bool:
        told = json.loads(self._told("stream", "info", STREAM, "--json"))
        return bool(told["state"]["messages"] == 0)

    def run(self) -> Rates:
        """All phases, as the program counts."""
        with self._stream():
            put = self._published()
            take = _rate(self._told(*self._bench("consume")))
            eventually_sync(self._is_empty, within=PATIENCE_S)
        with self._stream():
            log = self._folder / "consume.log"
            log.unlink(missing_ok=True)
            consuming = processes.spawn([*self._begin, *self._bench("consume")], log=log)
            try:
                time.sleep(LISTENS_S)
                self._published()
                assert consuming.wait(timeout=PATIENCE_S) == 0, processes.tail(log)
            finally:
                processes.stop(consuming)
            both = _rate(log.read_text())
            eventually_sync(self._is_empty, within=PATIENCE_S)
        return put, take, both


def _rate(output: str) -> float:
    found = _RATE.findall(output)
    assert found, output
    return float(found[-1].replace(",", ""))


@contextmanager
def driven(name: str, cell: Cell, durability: str, root: Path) -> Iterator[Callable[[], Rates]]:
    """One run after the other by our own driver, on a server for it."""
    peer, folders = CATALOGUE[name], [root / f"{CATALOGUE[name].driver}-{what}" for what in ("server", "drivers")]
    for folder in folders:
        folder.mkdir()
    with peer.server(folders[0], durability) as server:
        contest = Contest(peer, cell, server.address, folders[1])

        def rates() -> Rates:
            run = contest.run()
            assert not run.fault, run.fault
            return run.rates

        yield rates


@contextmanager
def told_by_the_program(cell: Cell, durability: str, root: Path) -> Iterator[Callable[[], Rates]]:
    """The same by the program."""
    folder = root / PROGRAM
    folder.mkdir()
    with servers.nats(folder, durability) as server:
        yield Program(server.address, cell, folder).run


def compare(cell: Cell, durability: str, runs: int, table: Table) -> None:
    """One warm-up and so many runs of all three, in turn."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hw-")))
        contestants = [
            stack.enter_context(told_by_the_program(cell, durability, root)),
            stack.enter_context(driven(JETSTREAM, cell, durability, root)),
            stack.enter_context(driven(HEADWAY, cell, durability, root)),
        ]
        rounds = [[run() for run in contestants] for _ in range(1 + runs)][1:]
    shape = f"{durability}, {cell.size:,} B, {cell.clients} client{'s' * (cell.clients > 1)}"
    for at, phase in enumerate(PHASES):
        of_each = [[rates[at] for rates in of_one] for of_one in zip(*rounds, strict=True)]
        program, driver, headway = map(statistics.median, of_each)
        table.add(shape, phase, *map(spread, of_each), f"{headway / program:.2f}", f"{headway / driver:.2f}")


def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1_024], help="bytes of a message")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--durability", nargs="+", choices=BOTH, default=[servers.EVERYSEC])
    parser.add_argument("--batch", type=int, default=BATCH, help="messages that go together, where our drivers do that")
    parser.add_argument("--unconfirmed", type=int, default=UNCONFIRMED, help="messages of each client")
    parser.add_argument("--section", default="bench-jetstreams-own", help="of the file of --markdown")
    options = parser.parse_args()
    try:
        program = str(places.program(PROGRAM))
    except places.Missing as missing:
        raise SystemExit(str(missing)) from None
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    table = Table(
        "JetStream by its own benchmark",
        [
            *("durability, size, clients", "phase", f"nats bench {version}", f"{JETSTREAM}, our driver", HEADWAY),
            *("Headway ÷ the first", "÷ the second"),
        ],
        f"Messages/s, {options.messages:,} in each run; median (least–most) of {options.runs} runs, in turn. Up to "
        f"{options.unconfirmed:,} messages of each client are unconfirmed; Headway's go in batches of {options.batch}.",
    )
    for durability, size, clients in product(options.durability, options.sizes, options.clients):
        cell = Cell(options.messages, size, clients, PATIENCE_S, options.batch, options.unconfirmed)
        compare(cell, durability, options.runs, table)
    write(options.markdown, options.section, made_by("", "bench.peers.jetstreams_own"), [table], GROUPED)


if __name__ == "__main__":
    main()
