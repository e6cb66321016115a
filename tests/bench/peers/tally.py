"""How often each message was done with, counted in a file that the processes of a run share. Standard library only:
drivers run in environments of their own.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

DIGITS = 10  # a payload begins with its number, so wide
_MOST = 255  # a count is one byte


def payload(number: int, size: int) -> bytes:
    """The message of this number: the number, then filler."""
    return (b"%0*d" % (DIGITS, number)).ljust(size, b"x")


def number_of(body: bytes | str) -> int:
    """The number of a message."""
    return int(body[:DIGITS])


class Tally:
    """Counts for the messages 0 to count - 1. If two processes count the same message within the same microsecond, that
    one may be counted once; a queue that delivers twice does so to more than one."""

    def __init__(self, path: Path, count: int) -> None:
        self.count = count
        self._first_missing = 0
        with path.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), count)

    @classmethod
    def made(cls, path: Path, count: int) -> Tally:
        """A new one, all zero."""
        path.write_bytes(bytes(count))
        return cls(path, count)

    def mark(self, numbers: Iterable[int]) -> None:
        """These were got and acknowledged."""
        counts = self._counts
        for number in numbers:
            counts[number] = min(counts[number] + 1, _MOST)

    @property
    def is_complete(self) -> bool:
        """Every message was done with at least once. Cheap to ask again."""
        found = self._counts.find(b"\0", self._first_missing)
        self._first_missing = self.count if found < 0 else found
        return found < 0

    @property
    def done(self) -> int:
        """How many messages were done with at least once."""
        return self.count - self._counts[:].count(b"\0")

    def fault(self) -> str:
        """What is wrong with what was delivered; '' if every message was done with exactly once. One that is missing is
        lost, or did not come before the phase was given up."""
        counts = self._counts[:]
        missing, once = counts.count(b"\0"), counts.count(b"\1")
        twice = self.count - missing - once
        said = [f"{missing} missing"] if missing else []
        said += [f"{twice} more than once"] if twice else []
        return ", ".join(said)
