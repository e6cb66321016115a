"""Child processes that die with the test process, and are reaped within a bound."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import headwayd
from harness.template import Forked

TETHER = Path(headwayd.__file__).parent / "store" / "tether.py"
_STOP_S = 15


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program by its absolute path; stderr (and stdout, unless asked for) go to `log`."""
    mode = "signal" if sys.platform == "linux" else "pipe"
    tethered = [sys.executable, "-I", "-S", str(TETHER), mode, str(os.getpid()), *map(str, command)]
    with log.open("ab") as sink:
        return subprocess.Popen(
            tethered,
            stdin=subprocess.DEVNULL if mode == "signal" else subprocess.PIPE,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes] | Forked, number: int = signal.SIGTERM, *, within: float = _STOP_S) -> int:
    """Sends a signal, waits, kills after the bound. Returns the exit code (negative: the signal that ended it)."""
    if process.poll() is None:
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)  # a paused process cannot follow
    try:
        code = process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait(within)
    if process.stdout:
        process.stdout.close()
    return code


def tail(path: Path, *, lines: int = 60) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
