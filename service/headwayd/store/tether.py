"""Runs a program that must not outlive the process that started it: `tether.py MODE PARENT PROGRAM…`.

MODE `signal` (Linux): asks the kernel for SIGTERM at the parent's death, then becomes the program.
MODE `pipe` (elsewhere): stays between; the end of its standard input is the parent's death.
It knows nothing of the program, and nothing else of Headway: it starts without the packages around it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE_S = 10  # from SIGTERM to SIGKILL, in pipe mode


def _become(parent: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(0)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _stay_between(command: list[str], inherited: tuple[int, ...]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)  # noqa: S603 - our own arguments

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _inherited() -> tuple[int, ...]:
    numbers = (int(entry.name) for entry in Path("/dev/fd").iterdir())
    return tuple(number for number in numbers if number > 2 and _is_inheritable(number))


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one that listed the folder
        return False


def main() -> None:
    """Reads the arguments and runs the program."""
    mode, parent, *command = sys.argv[1:]
    if mode == "signal":
        _become(int(parent), command)
    sys.exit(_stay_between(command, _inherited()))


if __name__ == "__main__":
    main()
