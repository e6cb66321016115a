"""Reads elements of the line: frames, and bare payloads. The layout is told in lua/include/frame.lua, which writes
them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import mul

MAGIC = b"\xf5HW\x01"
_HEADER = struct.Struct(">4sQHIIH")
_WEIGHTS = range(1, 23)  # of the bytes before the check


@dataclass(frozen=True, slots=True)
class Element:
    """What an element of the line says: `id` is empty, and `put_at_ms` None, for a bare payload."""

    payload: bytes
    id: str = ""
    headers: bytes = b""
    put_at_ms: int | None = None


def _check(header: bytes) -> int:
    return int(sum(map(mul, _WEIGHTS, header)) % 65521)


def read(element: bytes) -> Element:
    """Anything that is not a frame through and through is a payload, whatever it begins with."""
    if element[:4] != MAGIC or len(element) < _HEADER.size:
        return Element(element)
    _, put_at, id_length, headers_length, total, check = _HEADER.unpack_from(element)
    id_end = _HEADER.size + id_length
    headers_end = id_end + headers_length
    if total != len(element) or headers_end > total or check != _check(element):
        return Element(element)
    given_id = element[_HEADER.size : id_end].decode("utf-8", "replace")
    return Element(element[headers_end:], given_id, element[id_end:headers_end], put_at)
