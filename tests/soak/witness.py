"""Two witnesses who ask nobody but the store, and know of it only what docs/storage.md says.

`LeaseLog` reads MONITOR, which shows every command in the order in which the store did them, those of scripts too. So
it knows at every instant, not only at those that are sampled, which leases are out. `sample` reads a whole queue in one
read-only script.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from harness.bundles import read_head, unescaped

_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_NAME = re.compile(rb"[pf]\d+-\d+")  # the payload of a message of this run, wherever it stands in an element


def name_in(element: bytes) -> bytes:
    """Which message an element of the line, or what is kept of it, is."""
    match = _NAME.search(element)
    return match[0] if match else element


class LeaseLog(threading.Thread):
    """Every lease that the store ever noted for one queue. `wrong` says what must never be."""

    def __init__(self, port: int, base: str) -> None:
        super().__init__(name="lease log", daemon=True)
        self.granted = 0
        self.most_out = 0
        self.lent: set[bytes] = set()  # every message that was ever leased
        self.wrong: list[str] = []
        self._keys = {f"{base}:x:{kind}".encode(): kind for kind in ("leases", "lease", "body", "bundle")}
        self._marker = f'"{base}:x:'.encode()
        self._records: dict[bytes, bytes] = {}  # ticket → record of the lease that is out
        self._messages: dict[bytes, bytes] = {}  # ticket → its message
        self._tickets: dict[bytes, bytes] = {}  # message → the ticket under which it is leased
        self._deadlines: dict[bytes, bytes] = {}
        self._bundles: dict[bytes, set[bytes]] = {}  # step → tickets of its bundle that are out and not kept singly
        self._end = f"the end of {base}".encode()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.sendall(b"MONITOR\r\n")
        self._stream = self._socket.makefile("rb")
        assert self._stream.readline() == b"+OK\r\n"
        self._socket.settimeout(None)
        self.start()

    @property
    def out(self) -> int:
        """How many leases are out now."""
        return len(self._records) + len(self._messages) + len(self._deadlines) + len(self._bundles)

    def finish(self, client: redis.Redis) -> None:
        """Returns when everything that happened before has been read."""
        client.echo(self._end.decode())
        self.join(60)
        assert not self.is_alive(), "the log is far behind"
        self._socket.close()

    def run(self) -> None:
        """Reads until told that it is the end."""
        for line in self._stream:
            if self._marker in line:
                command, *arguments = map(unescaped, _ARGUMENT.findall(line))
                self._note(command.upper(), arguments)
            elif self._end in line:
                return

    def _note(self, command: bytes, arguments: Sequence[bytes]) -> None:
        if command in (b"DEL", b"UNLINK"):
            for key in arguments:
                self._drop(self._keys.get(key), None)
            return
        kind, values = self._keys.get(arguments[0]), arguments[1:]
        if kind is None:
            return
        if command in (b"HDEL", b"ZREM"):
            self._drop(kind, values)
        elif command == b"HSET" and kind == "bundle":
            self._bundle(dict(zip(values[::2], values[1::2], strict=True)))
        elif command == b"HSET" and kind == "lease":
            for ticket, record in zip(values[::2], values[1::2], strict=True):
                self._grant(ticket, record)
        elif command == b"HSET" and kind == "body":
            for ticket, element in zip(values[::2], values[1::2], strict=True):
                self._lend(ticket, name_in(element))
        elif command == b"ZADD" and kind == "leases":
            self._deadlines.update(zip(values[1::2], values[::2], strict=True))
        elif command.startswith((b"HSET", b"HINCR", b"ZADD", b"ZPOP", b"ZREM", b"ZINCR")):
            self.wrong.append(f"the log does not know what {command!r} does to x:{kind}")

    def _bundle(self, fields: dict[bytes, bytes]) -> None:
        """A bundle is made, or some of it have been settled."""
        for field, head in fields.items():
            step = field[1:]
            if not field.startswith(b"h"):
                continue
            bundle = read_head(step, head)
            if (before := self._bundles.get(step)) is not None:
                self._settle(before - bundle.tickets.keys())
            else:
                names = _NAME.findall(fields[b"b" + step])  # the elements: their tickets follow each other
                assert len(names) == bundle.count, f"{len(names)} messages in a bundle of {bundle.count}"
                for at, name in enumerate(names):
                    self._lend(b"%d" % (bundle.first + at), name)
            for ticket, record in bundle.tickets.items():
                self._grant(ticket, record)
            self._bundles[step] = set(bundle.tickets)

    def _settle(self, tickets: set[bytes]) -> None:
        """These are no longer leased."""
        self._drop("lease", tickets)
        self._drop("body", tickets)

    def _grant(self, ticket: bytes, record: bytes) -> None:
        before = self._records.get(ticket)
        if before is None:
            self.granted += 1
        elif before != record:  # it has the lease's nonce in it, and stays as it is while the lease lives
            self.wrong.append(f"ticket {ticket!r} was leased while it was leased")
        self._records[ticket] = record
        for tickets in self._bundles.values():
            tickets.discard(ticket)  # it was untied, and is kept singly from now on
        self.most_out = max(self.most_out, len(self._records))

    def _lend(self, ticket: bytes, message: bytes) -> None:
        if self._tickets.get(message, ticket) != ticket:
            self.wrong.append(f"message {message!r} was leased under two tickets")
        self._messages[ticket] = message
        self._tickets[message] = ticket
        self.lent.add(message)

    def _drop(self, kind: str | None, tickets: Collection[bytes] | None) -> None:
        if kind == "bundle":
            steps = {field[1:] for field in tickets} if tickets is not None else set(self._bundles)
            for step in steps:
                self._settle(self._bundles.pop(step, set()))
        elif kind == "body":
            for ticket in list(self._messages) if tickets is None else tickets:
                if (message := self._messages.pop(ticket, None)) is not None:
                    self._tickets.pop(message, None)
        elif kind is not None:
            known = self._records if kind == "lease" else self._deadlines
            for ticket in list(known) if tickets is None else tickets:
                known.pop(ticket, None)


_SAMPLE = """#!lua flags=no-writes
local base = KEYS[1]
local function size(kind) return redis.call('ZCARD', base .. ':x:' .. kind) end
local totals = redis.call('HMGET', base .. ':x:meta', 'n_accepted', 'n_acked', 'n_expired', 'n_withdrawn', 'n_foreign')
local leased, heads, bundled = redis.call('HVALS', base .. ':x:body'), redis.call('HGETALL', base .. ':x:bundle'), 0
for i = 1, #heads, 2 do
  if string.sub(heads[i], 1, 1) == 'h' then
    local elements = cmsgpack.unpack(redis.call('HGET', base .. ':x:bundle', 'b' .. string.sub(heads[i], 2)))
    local _, count, left, size, at = struct.unpack('>I8I4I4I2', heads[i + 1])
    for j = 0, count - 1 do
      local settled = string.byte(heads[i + 1], at + size + math.floor(j / 8))
      if math.floor(settled / 2 ^ (j % 8)) % 2 == 0 then leased[#leased + 1] = elements[j + 1] end
    end
    bundled = bundled + left
  end
end
return { redis.call('LRANGE', base, 0, -1), leased,
  redis.call('HVALS', base .. ':x:later'), redis.call('HVALS', base .. ':x:corpse'),
  { size('leases') + bundled, size('delayed'), size('dead'), redis.call('HLEN', base .. ':x:lease') + bundled }, totals,
  size('holes') }
"""


@dataclass(frozen=True)
class Sample:
    """A queue at one instant."""

    in_line: Sequence[bytes]
    leased: Sequence[bytes]
    delayed: Sequence[bytes]
    dead: Sequence[bytes]
    sizes: Sequence[int]
    totals: Sequence[int]  # accepted, acked, expired, withdrawn, taken by foreign clients
    holes: int  # elements of the line that are no messages any more

    def wrong(self, *, with_totals: bool) -> list[str]:
        """What should be true and is not. The totals are behind while a foreign client is at work."""
        found = []
        places = Counter(name_in(kept) for kept in (*self.in_line, *self.leased, *self.delayed, *self.dead))
        if twice := [name for name, count in places.items() if count > 1]:
            found.append(f"messages in two states at once: {twice[:3]}")
        if list(self.sizes) != [len(self.leased), len(self.delayed), len(self.dead), len(self.leased)]:
            found.append(f"{self.sizes} leases, delayed, dead, records, but {len(self.leased)} leased elements, …")
        accepted, *ended = self.totals
        here = sum(places.values()) - self.holes
        if with_totals and accepted != here + sum(ended):
            found.append(f"{accepted} accepted, {here} here, {ended} ended")
        return found


def sample(client: redis.Redis, base: str) -> Sample:
    """The queue as of one instant, from the store itself."""
    reply: list[Any] = client.eval(_SAMPLE, 1, base)
    in_line, leased, delayed, dead, sizes, totals, holes = reply
    return Sample(in_line, leased, delayed, dead, sizes, [int(total or 0) for total in totals], holes)
