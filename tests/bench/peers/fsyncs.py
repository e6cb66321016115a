"""Whether servers are as durable as their column says: counts the fsyncs of each while messages are put and then got,
by strace. Run as `cd tests && ../.venv/bin/python -m bench.peers.fsyncs`; needs strace and root.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.peers.catalogue import BOTH, CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.peers.places import Missing
from bench.tables import Table, arguments, made_by, write

SETTLED_S = 1.0  # strace has attached
SYSTEM_CALLS = "fsync,fdatasync,msync,sync_file_range"
_TOTAL = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+)(?: +\d+)? +(?!total)\w+$", re.MULTILINE)


@contextmanager
def counted(strace: str, folder: Path) -> Iterator[list[int]]:
    """The system calls that all children of this process make meanwhile, once the block has ended."""
    counts: list[int] = []
    tracers = []
    for child in psutil.Process().children(recursive=True):
        log = folder / f"strace.{child.pid}"
        command = [strace, "-f", "-c", "-e", f"trace={SYSTEM_CALLS}", "-o", str(log), "-p", str(child.pid)]
        tracers.append((subprocess.Popen(command, stderr=subprocess.DEVNULL), log))
    time.sleep(SETTLED_S)
    try:
        yield counts
    finally:
        for tracer, _ in tracers:
            tracer.terminate()
            tracer.wait()
    for _, log in tracers:
        counts += [int(found) for found in _TOTAL.findall(log.read_text() if log.exists() else "")]


def main() -> None:
    """Counts for one peer of each server."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=3_000)
    options = parser.parse_args()
    strace = shutil.which("strace")
    if strace is None:
        raise SystemExit("strace is not installed")
    table = Table(
        "How often servers fsync",
        ["peer", "durability", "fsyncs"],
        f"{options.messages:,} messages of 256 B, put and then got by one client in batches of 100; counted by strace.",
    )
    names = ["Headway, streams", "Redis list", "NATS JetStream", "NATS JetStream, Go, fast"]
    names += ["NATS JetStream, Go, atomic", "NSQ, Go", "beanstalkd", "RabbitMQ, classic", "RabbitMQ, quorum"]
    for name, durability in itertools.product(names, BOTH):
        peer = CATALOGUE[name]
        if durability not in peer.durabilities:
            continue
        with tempfile.TemporaryDirectory(prefix="hw-") as root:
            folder = Path(root)
            (folder / "server").mkdir()
            try:
                with peer.server(folder / "server", durability) as server, counted(strace, folder) as counts:
                    cell = Cell(options.messages, 256, 1, patience_s=60)
                    *_, fault = Contest(peer, cell, server.address, folder).one_after_the_other()
                    assert not fault, fault
                table.add(name, durability, f"{sum(counts):,}")
            except Missing as error:
                print(f"{name}: {error}")
    write(options.markdown, "bench-fsyncs", made_by("", "bench.peers.fsyncs"), [table])


if __name__ == "__main__":
    main()
