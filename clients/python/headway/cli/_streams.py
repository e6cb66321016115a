"""Standard input and output as a command may find them: closed, or in an encoding that cannot say everything."""

import io
import os
import sys

_STDIN, _STDOUT, _STDERR = range(3)


def make_usable() -> None:
    """Puts something in the place of each standard stream that is closed, so that nothing else takes its descriptor: an
    input that is empty, an output that nobody reads, errors that go nowhere. What an encoding lacks is shown as `?`.
    """
    missing = [descriptor for descriptor in range(3) if not _is_open(descriptor)]
    for _ in missing:
        os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    if _STDIN in missing:
        sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115 - it is empty, and stays open
    if _STDOUT in missing:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, _STDOUT)
        os.close(write)
        sys.stdout = open(_STDOUT, "w", closefd=False)  # noqa: SIM115 - nobody reads it
    if _STDERR in missing:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115 - nobody reads it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
