"""The embedded store's folder: who may use it, where its socket lies, what the server is told. Starts nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

# A socket's path has room for 104 bytes on macOS and 108 on Linux, the closing NUL included.
_MAX_SOCKET_PATH_BYTES = 103
# A queue writes far more than it holds: at the server's own 64 MB a busy one would fork again and again. Of much more
# a restart would take long.
REWRITE_FROM = "256mb"


class EmbeddedStoreFailed(Exception):
    """The embedded store cannot be used. The text says why and what to do; it ends the start of the service."""


class Lock:
    """A lock file. Held as long as any process has its descriptor open: a child can inherit it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """Of the held lock, for a child to inherit."""
        assert self._descriptor is not None, f"{self._path} is not held"
        return self._descriptor

    @property
    def is_held(self) -> bool:
        """By this object, not by a child."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Takes it if it is free, and writes this process's id into it. Does not block. Not taken if it raises."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        try:
            self.write(os.getpid())
        except BaseException:
            self.release()  # else whoever tries again would stand in its own way
            raise
        return True

    def write(self, pid: int) -> None:
        """Names the holder, for people."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{pid}\n".encode(), 0)

    def holder(self) -> str:
        """Who holds it, as it wrote itself."""
        return self._path.read_text().strip() or "unknown"

    def leave_to(self, pid: int) -> None:
        """Lets go of it after a child inherited it: from now on it is free only when that child is gone."""
        self.write(pid)
        self.release()

    def release(self) -> None:
        """Gives it back. The file stays: removing it would let two hold it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def make(folder: Path, private: Path, socket_folder: Path) -> None:
    """Makes what is missing. What holds data or the socket is for this user alone; a folder given stays as it is.

    Raises EmbeddedStoreFailed.
    """
    try:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
        for path in (private, socket_folder):
            path.mkdir(mode=0o700, exist_ok=True)
            _check_private(path)
    except OSError as error:
        raise EmbeddedStoreFailed(f"cannot use the data folder {folder}: {error}") from error


def _check_private(path: Path) -> None:
    """Nobody else may own or enter it, and it is no link: the fall-back folder lies where everybody may write."""
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.getuid():
        raise EmbeddedStoreFailed(f"{path} belongs to somebody else")
    if found.st_mode & 0o077:
        path.chmod(0o700)


def socket_path(private: Path) -> Path:
    """Where the socket lies: with the data, or in a short private folder of the same user if that path is too long."""
    beside = private / "valkey.sock"
    if len(os.fsencode(beside)) <= _MAX_SOCKET_PATH_BYTES:
        return beside
    short = hashlib.sha256(os.fsencode(private)).hexdigest()[:16]
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - made private, checked
        if not base or not Path(base).is_dir() or not os.access(base, os.W_OK):
            continue
        path = Path(base) / f"headway-{os.getuid()}-{short}" / "valkey.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
            return path
    raise EmbeddedStoreFailed(
        f"no folder with a path short enough for a socket: choose a --data-dir shorter than {private}"
    )


def configuration(private: Path, *, socket: Path, log: Path, fsync: str) -> str:
    """The text of valkey.conf; `fsync` is "everysec" or "always"."""
    return "\n".join(
        [
            "# Written by headwayd at every start; changes are lost.",
            "port 0",
            f"unixsocket {_quoted(socket)}",
            "unixsocketperm 700",
            f"dir {_quoted(private)}",
            f"logfile {_quoted(log)}",
            "daemonize no",
            "databases 1",
            "appendonly yes",
            f"appendfsync {fsync}",
            f"auto-aof-rewrite-min-size {REWRITE_FROM}",
            'save ""',
            "maxmemory-policy noeviction",
            "",
        ]
    )


def _quoted(path: Path) -> str:
    """As valkey.conf wants text with blanks in it."""
    if any(ord(character) < 0x20 for character in str(path)):
        raise EmbeddedStoreFailed(f"a data folder may have no control characters in its path: {str(path)!r}")
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
