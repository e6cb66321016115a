"""A witness of a queue's consumer line: who stood there at every instant, and to whom each step leased something.

Everybody has a name of its own as `consumer`, which stands beside its waiter's in each try; kept places are known by
theirs. Known besides are the leases; nothing of how the scripts decide.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from harness.bundles import read_head, unescaped
from headwayd.store import scripts
from truth.witness import Witness

PLACE_MARK = b"@"
# Where the arguments of get.lua stand behind its SHA-1 and the count of keys.
KEY, CONSUMER, WAITER, FIRST_ARGUMENT = 2, 5, 11, 3


class ConsumerWitness(Witness):
    """The consumer line of a queue with `limit` slots, in which there is always something to lease. `unfair` says
    which grants went to somebody who was not among the first that could be served; `over_limit` when there were more
    leases than slots."""

    def __init__(self, port: int, base: str, *, limit: int) -> None:
        super().__init__(port, base)
        self.unfair: list[str] = []
        self.over_limit: list[str] = []
        self.grants = 0
        self._limit = limit
        self._order: list[tuple[float, bytes]] = []
        self._numbers: dict[bytes, float] = {}
        self._names: dict[bytes, bytes] = {}  # waiter → consumer
        self._leases: set[bytes] = set()
        self._bundles: dict[bytes, set[bytes]] = {}  # step → tickets of its bundle that are out and not kept singly
        self._waiter: bytes | None = None  # of the get that is under way
        self._get = scripts.all_scripts()["get"].sha
        keys = (f"{base}:x:{name}".encode() for name in ("consumers", "leases", "bundle"))
        self._consumers, self._leases_key, self._bundle_key = keys
        self._markers += [b'"%s"' % key for key in (self._consumers, self._leases_key, self._bundle_key)]
        self.start()

    def _in_order(self) -> Sequence[bytes]:
        return tuple(self._names.get(waiter, waiter) for _, waiter in self._order)

    def _begin(self, command: bytes, arguments: Sequence[bytes]) -> None:
        if len(self._leases) > self._limit:
            self.over_limit.append(f"{len(self._leases)} leases before {self._since}")
        self._waiter = None
        if (command == b"EVALSHA" and arguments[0] == self._get) or (
            command == b"EVAL" and b"leases messages" in arguments[0]
        ):
            self._waiter = arguments[WAITER]
            self._names[self._waiter] = arguments[CONSUMER]

    def _apply(self, command: bytes, key: bytes, arguments: Sequence[bytes]) -> None:
        if key == self._consumers:
            if command == b"ZADD":
                self._enter(arguments)
            elif command == b"ZREM":
                for member in arguments:
                    self._leave(member)
            elif command in {b"DEL", b"UNLINK"}:
                self.wrong.append("the line was deleted")
        elif key == self._leases_key and command == b"ZADD":
            self._lease(set(arguments[1::2]))
            for tickets in self._bundles.values():
                tickets.difference_update(arguments[1::2])  # they were untied
        elif key == self._leases_key and command == b"ZREM":
            self._leases.difference_update(arguments)
        elif key == self._bundle_key:
            self._apply_to_bundles(command, [unescaped(argument) for argument in arguments])

    def _apply_to_bundles(self, command: bytes, arguments: Sequence[bytes]) -> None:
        if command == b"HSET":
            self._bundle(arguments)
        elif command == b"HDEL":
            for field in arguments:
                self._leases -= self._bundles.pop(field[1:], set())

    def _bundle(self, fields: Sequence[bytes]) -> None:
        """A bundle is made, or some of it have been settled."""
        for field, head in zip(fields[::2], fields[1::2], strict=True):
            if field.startswith(b"h"):
                out = set(read_head(field[1:], head).tickets)
                before = self._bundles.get(field[1:])
                self._bundles[field[1:]] = out
                if before is None:
                    self._lease(set(out))
                else:
                    self._leases -= before - out

    def _enter(self, arguments: Sequence[bytes]) -> None:
        is_new_only = arguments[0].upper() == b"NX"
        number, member = arguments[-2:]
        if is_new_only and member in self._numbers:
            return
        self._leave(member)
        self._numbers[member] = float(number)
        insort(self._order, (float(number), member))
        self._has_changed = True

    def _leave(self, member: bytes) -> None:
        number = self._numbers.pop(member, None)
        if number is not None:
            del self._order[bisect_left(self._order, (number, member))]
            self._has_changed = True

    def _lease(self, tickets: set[bytes]) -> None:
        """Whoever is leased something must be among the first that the free slots are enough for."""
        tickets -= self._leases  # the others are extended
        if not tickets:
            return
        free = self._limit - len(self._leases)
        self._leases |= tickets
        if self._waiter is None:
            self.wrong.append(f"leased by something that is no get, at {self._since}")
            return
        self.grants += 1
        number = self._numbers.get(self._waiter)
        ahead = len(self._order) if number is None else bisect_left(self._order, (number, self._waiter))
        if ahead + len(tickets) > free:
            who = self._names[self._waiter]
            self.unfair.append(f"{who!r}, {ahead} before it, got {len(tickets)} of {free} slots at {self._since}")
