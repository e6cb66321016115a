"""Files that are read again when they change. A new content that cannot be used is logged, and the old one stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

log: Any = structlog.get_logger(__name__)

Value = TypeVar("Value")
_Stamp = tuple[tuple[int, int, int], ...]


class AccessFailed(Exception):
    """A file, or what it says, cannot be used. The text is for the operator and holds no secret."""


class WatchedFiles(Generic[Value]):
    """What `read` makes of the contents of some files that belong together. `read` raises ValueError for contents that
    it cannot use, and OSError if it cannot tell. `version` counts the values."""

    def __init__(self, paths: Sequence[Path], read: Callable[[Sequence[bytes]], Value]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._stamp: _Stamp = ()  # of what was read
        self._seen: _Stamp = ()  # at the last look
        self.value = self._load()
        self.version = 0

    def refresh(self) -> None:
        """Reads the files again if they have changed. To be called every few seconds. Never raises."""
        try:
            if not self._has_changed(self._look()):
                return
            self.value = self._load()
            self.version += 1
        except (AccessFailed, OSError) as error:
            log.error("a changed file cannot be used, what it said before stays in force", error=str(error))  # noqa: TRY400 - the trace is this class's
        else:
            log.info("a changed file was read", files=self._names)

    def _has_changed(self, stamp: _Stamp) -> bool:
        """What took a file's place is whole. What is written into a file may be half there, which may pass for all of
        it: it is waited for until two looks see the same."""
        seen, self._seen = self._seen, stamp
        is_in_place = any(new != old and new[-1] == old[-1] for new, old in zip(stamp, self._stamp, strict=False))
        return stamp != self._stamp and (stamp == seen or not is_in_place)

    @property
    def _names(self) -> str:
        return ", ".join(map(str, self._paths))

    def _look(self) -> _Stamp:
        # A mounted secret is a link to a folder that is swapped: another file has another number.
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def _load(self) -> Value:
        try:
            stamp = self._look()
            contents = [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise AccessFailed(f"cannot read {error.filename}: {error.strerror}") from error
        # Also of what cannot be used: it is complained of once.
        self._stamp = stamp
        try:
            return self._read(contents)
        except OSError as error:  # such as no file descriptor left: the next look tries again
            self._stamp = ()
            raise AccessFailed(f"cannot read {self._names}: {error.strerror}") from error
        except ValueError as error:
            raise AccessFailed(f"{self._names}: {error}") from error
