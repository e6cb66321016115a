"""Reads what the store keeps of bundles (docs/storage.md), for witnesses that look at the store alone."""

from __future__ import annotations

import codecs
import re
import struct
from dataclasses import dataclass

_HEAD = struct.Struct(">QIIH")
_FRESH = struct.Struct(">IQQBI")
_COUNTED_AND_HELD = 1 + 16
_PUT = re.compile(rb"(\d+) (\d+)")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The head of a bundle: its first ticket, how many leases it was made of, which of them are out (counted from 0),
    and what is kept of each."""

    first: int
    count: int
    out: tuple[int, ...]
    records: tuple[bytes, ...]

    @property
    def tickets(self) -> dict[bytes, bytes]:
        """Of the leases that are out: ticket → record."""
        return {b"%d" % (self.first + at): self.records[at] for at in self.out}


def read_head(step: bytes, head: bytes) -> Bundle:
    """The field 'h' and the step of x:bundle. AssertionError if it contradicts itself."""
    first, count, left, size = _HEAD.unpack_from(head)
    settled_at = _HEAD.size + size
    rest_at = settled_at + (count + 7) // 8
    put_when, settled, rest = head[_HEAD.size : settled_at], head[settled_at:rest_at], head[rest_at:]
    records = [
        _FRESH.pack(0, int(ms), 0, _COUNTED_AND_HELD, 0) + step + rest
        for number, ms in _PUT.findall(put_when)
        for _ in range(int(number))
    ]
    out = tuple(at for at in range(count) if not settled[at // 8] >> at % 8 & 1)
    assert (len(records), len(out)) == (count, left), f"{count} leases, {left} left, {len(records)} and {len(out)} told"
    return Bundle(first, count, out, tuple(records))


def unescaped(argument: bytes) -> bytes:
    """What an argument was before MONITOR wrote it between quotes."""
    text, _ = codecs.escape_decode(argument)
    assert isinstance(text, bytes)
    return text
