"""A witness of one queue that asks nobody but the store: every change of a line, as the store did it.

MONITOR shows each command with its instant, those of scripts right behind the script that did them. What stands in the
line after each script, or each command of a foreign client, is kept with the instant from which it was true. Nothing is
known here of tickets, logs or looks. (The lines of messages are kept far shorter than the reach within which elements
leave the list at once: there are no holes in it. docs/storage.md)
"""

from __future__ import annotations

import re
import socket
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import redis

_LINE = re.compile(rb"^\+?(\d+\.\d+) \[\d+ ([^\]]*)\] (.*)\r\n$", re.DOTALL)
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_NAME = re.compile(rb"<[a-z]\d+-\d+>")  # every message of a run has such a name in its payload
_LOOKS = frozenset({b"LLEN", b"LRANGE", b"LINDEX", b"EXISTS", b"MGET", b"TYPE", b"PTTL"})


def name_in(element: bytes) -> bytes:
    """Which message an element is; itself if it is none."""
    match = _NAME.search(element)
    return match[0] if match else element


@dataclass(frozen=True, slots=True)
class State:
    """The line from an instant on (seconds since 1970), the head first."""

    since: float
    line: Sequence[bytes]


class Witness(threading.Thread, ABC):
    """A line of one queue at every instant. `wrong` says what it could not follow."""

    def __init__(self, port: int, base: str) -> None:
        super().__init__(name=f"witness of {base}", daemon=True)
        self.wrong: list[str] = []
        self.changes = 0
        self.seen_until = 0.0
        self._states = [State(0.0, ())]
        self._since = 0.0
        self._has_changed = False
        self._key = base.encode()
        self._tick = f'"the witness of {base}"'.encode()
        self._markers = [f'"{base}"'.encode(), self._tick]
        self._lock = threading.Lock()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.sendall(b"MONITOR\r\n")
        self._stream = self._socket.makefile("rb", buffering=1 << 20)
        assert self._stream.readline() == b"+OK\r\n"
        self._socket.settimeout(None)
        self._is_closed = False

    def tick(self, client: redis.Redis) -> None:
        """Lets it know what time it is, should nothing happen."""
        client.echo(self._tick[1:-1].decode())

    def close(self) -> None:
        """No more."""
        self._is_closed = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self._socket.close()

    def states(self, first: float, last: float) -> Sequence[State]:
        """What stood in line at any instant from `first` to `last`, both included."""
        with self._lock:
            begin = bisect_right(self._states, first, key=lambda state: state.since) - 1
            end = bisect_right(self._states, last, key=lambda state: state.since)
            return self._states[max(begin, 0) : end]

    def forget(self, before: float) -> None:
        """What was true before is not asked for any more."""
        with self._lock:
            begin = bisect_right(self._states, before, key=lambda state: state.since) - 1
            if begin > 0:
                del self._states[:begin]

    def run(self) -> None:
        """Reads until closed."""
        try:
            for line in self._stream:
                if any(marker in line for marker in self._markers):
                    self._note(line)
        except ConnectionResetError:  # how the store takes the end of it, sometimes
            if not self._is_closed:
                raise

    def _note(self, line: bytes) -> None:
        match = _LINE.match(line)
        if match is None:
            self.wrong.append(f"not understood: {line[:200]!r}")
            return
        at, source = float(match[1]), match[2]
        command, *arguments = _ARGUMENT.findall(match[3])
        if source != b"lua":  # a script, or a foreign client's command: what was done before is whole
            self._publish()
            self._since = at
            self.seen_until = at
            self._begin(command.upper(), arguments)
        if arguments:
            self._apply(command.upper(), arguments[0], arguments[1:])

    def _publish(self) -> None:
        if self._has_changed:
            line = self._in_order()
            with self._lock:
                self._states.append(State(self._since, line))
            self._has_changed = False
            self.changes += 1

    @abstractmethod
    def _in_order(self) -> Sequence[bytes]:
        """The line as it stands, the head first."""

    def _begin(self, command: bytes, arguments: Sequence[bytes]) -> None:
        """A script, or a command of a client, begins."""

    @abstractmethod
    def _apply(self, command: bytes, key: bytes, arguments: Sequence[bytes]) -> None:
        """What it does, one command after the other. Sets `_has_changed`."""


class LineWitness(Witness):
    """The messages: a message's rank is its place in the list, from the head."""

    def __init__(self, port: int, base: str) -> None:
        super().__init__(port, base)
        self._line: list[bytes] = []  # the head last, as pops are there
        self.start()

    @property
    def length(self) -> int:
        """How many messages wait now, about."""
        return len(self._line)

    def _in_order(self) -> Sequence[bytes]:
        return tuple(self._line[::-1])

    def _apply(self, command: bytes, key: bytes, arguments: Sequence[bytes]) -> None:
        if key != self._key:
            return
        line = self._line
        match command:
            case b"LPUSH":
                line[:0] = [name_in(element) for element in reversed(arguments)]
            case b"RPUSH":
                line.extend(name_in(element) for element in arguments)
            case b"RPOP":
                count = int(arguments[0]) if arguments else 1
                if count:
                    del line[-count:]
            case b"LSET":
                line[int(arguments[0])] = name_in(arguments[1])
            case b"LREM":
                self._remove(int(arguments[0]), name_in(arguments[1]))
            case b"DEL" | b"UNLINK":
                line.clear()
            case _:
                if command not in _LOOKS:
                    self.wrong.append(f"it is not known what {command!r} does to the line")
                return
        self._has_changed = True

    def _remove(self, count: int, element: bytes) -> None:
        """LREM: so many from the left, or from the right if it is negative."""
        for _ in range(abs(count)):
            if element not in self._line:
                return
            at = self._line.index(element)
            if count < 0:
                at = len(self._line) - 1 - self._line[::-1].index(element)
            del self._line[at]
