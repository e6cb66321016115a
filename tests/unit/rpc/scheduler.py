"""The kernel's scheduler, as far as it tells a thread of itself."""

from __future__ import annotations

from pathlib import Path

MS = 1_000_000  # in ns


class Scheduler:
    """What it tells of a thread, and a clock that goes on meanwhile."""

    def __init__(self, file: Path) -> None:
        self.now = 1_000.0
        self._file = file
        self._ran = self._waited = 0
        self.pass_by(0, waited_ms=0)

    def pass_by(self, ran_ms: float, *, waited_ms: float, seconds: float = 1.0) -> None:
        """So long the thread ran, and so long it waited for a core."""
        self.now += seconds
        self._ran += int(ran_ms * MS)
        self._waited += int(waited_ms * MS)
        self._file.write_text(f"{self._ran} {self._waited} 7\n", encoding="ascii")
