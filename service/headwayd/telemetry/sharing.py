"""The numbers of several worker processes in memory that all of them share, so that each can tell those of all.

The supervisor makes one place for each worker, and hands all places to all workers. A worker writes its own place,
every few seconds and before it tells, and reads the others'. What grows for ever outlives a worker that died: who
takes its place goes on from there. So, whoever comes and goes, no counter of the whole ever falls. Who takes a place
has numbers of its own for the same queues at first, so that a place has no more series than one worker has.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import zlib
from collections.abc import Sequence

from headwayd.domain.namespaces import qualifier
from headwayd.telemetry.reading import Reading, cumulative, only_of, queues_in, together

WRITE_EVERY_S = 5.0
_GONE_AFTER_MS = 12_000  # of who has not written for so long only what grows for ever counts
_HEAD = 16  # length, checksum, and when it was written
_TRIES = 5  # a place may be read while it is written


def make_places(count: int) -> list[int]:
    """File descriptors of memory without a name, which is gone when the last process that knows it has ended."""
    if hasattr(os, "memfd_create"):
        return [os.memfd_create("headway-metrics", 0) for _ in range(count)]
    places = []
    for _ in range(count):
        with tempfile.TemporaryFile() as file:
            places.append(os.dup(file.fileno()))
    return places


class Shared:
    """All places, as the worker in the place `own` sees them."""

    def __init__(self, places: Sequence[int], *, own: int) -> None:
        self._places = places
        self._own = own
        self._last: dict[int, tuple[int, Reading]] = {}
        self._before = cumulative(self._read(own))  # of those who had this place before

    @property
    def queues_before(self) -> list[str]:
        """Of whose series this one goes on from: their names, qualified. It must have numbers of its own for each."""
        return [qualifier(namespace) + queue for namespace, queue in queues_in(self._before)]

    def all(self, own: Reading) -> Reading:
        """Those of all workers, with what this one's are now."""
        self.write(own)
        return together(self._read(place) for place in range(len(self._places)))

    def write(self, own: Reading) -> None:
        """What this one's are now. Of those before it keeps the queues that are told now: one that is no more, and is
        forgotten, has no series in any place."""
        self._before = only_of(self._before, queues_in(own))
        packed = pickle.dumps(together((self._before, own)))
        head = len(packed).to_bytes(4) + zlib.crc32(packed).to_bytes(4) + _now_ms().to_bytes(8)
        os.pwrite(self._places[self._own], head + packed, 0)

    def _read(self, place: int) -> Reading:
        """What stands there; what stood there before if it is just being written."""
        for _ in range(_TRIES):
            head = os.pread(self._places[place], _HEAD, 0)
            if not head:
                return {}
            packed = os.pread(self._places[place], int.from_bytes(head[:4]), _HEAD)
            if zlib.crc32(packed) == int.from_bytes(head[4:8]):
                # Nobody but workers of the same supervisor can write there.
                self._last[place] = int.from_bytes(head[8:]), pickle.loads(packed)  # noqa: S301
                break
        written_ms, reading = self._last.get(place, (0, Reading()))
        return reading if _now_ms() - written_ms < _GONE_AFTER_MS else cumulative(reading)


def _now_ms() -> int:
    """By the clock that all processes of the machine share."""
    return time.monotonic_ns() // 1_000_000
