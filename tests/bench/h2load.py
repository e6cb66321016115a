"""Drives a unary gRPC method by h2load, the stock HTTP/2 client of nghttp2, with one request that is always the same.

What went wrong inside of a call h2load does not see: for it whatever has a status of HTTP is answered.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

TIMEOUT_S = 120


def installed() -> str | None:
    """The program, if it is there; says so if not."""
    program = shutil.which("h2load")
    if program is None:
        print("left out: h2load is not installed (make bench-peers-setup)")
    return program


def _run(program: str, address: str, path: str, message: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile(prefix="hw-") as body:
        body.write(b"\x00" + len(message).to_bytes(4, "big") + message)
        body.flush()
        headers = [part for each in ("content-type: application/grpc", "te: trailers") for part in ("-H", each)]
        command = [program, *options, "-d", body.name, *headers, f"http://{address}{path}"]
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=TIMEOUT_S).stdout


def _failed_count(out: str, *, of: str) -> int:
    """Of what is `total` or `started`."""
    counts = re.search(rf"(\d+) {of}, .*?(\d+) succeeded", out)
    assert counts, out
    return int(counts[1]) - int(counts[2])


async def rate(
    program: str, address: str, path: str, message: bytes, *, calls: int, in_flight: int, connections: int
) -> float:
    """Calls per second, with always so many in flight."""
    shape = ["-n", str(calls), "-c", str(connections), "-m", str(in_flight // connections)]
    out = await asyncio.to_thread(_run, program, address, path, message, *shape)
    assert _failed_count(out, of="total") == 0, out
    found = re.search(r"([\d.]+) req/s", out)
    assert found, out
    return float(found[1])


async def times_ms(
    program: str, address: str, path: str, message: bytes, *, calls: int, per_second: int
) -> tuple[list[float], int]:
    """How long each call took, in an open loop on one connection, and how many failed; those that were not begun,
    because the service has told the connection to go away, are left out."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        log = Path(folder) / "calls"
        shape = ["-n", str(calls), "-c", "1", "-m", str(calls), f"--rps={per_second}", f"--log-file={log}"]
        out = await asyncio.to_thread(_run, program, address, path, message, *shape)
        logged = log.read_text() if log.exists() else ""
    return times_of(logged), _failed_count(out, of="started")


def times_of(log: str) -> list[float]:
    """What h2load logged of each call: when it began, in µs since 1970, its status, and how many µs it took. For one
    that never began it logs that it began at 0, and how long the machine has been up."""
    calls = [tuple(map(int, line.split("\t")[:3])) for line in log.splitlines()]
    return [took_us / 1_000 for began_us, _status, took_us in calls if began_us > 0]
