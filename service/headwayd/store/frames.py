"""Reads elements of the line: frames, and bare payloads. The layout is told in lua/include/frame.lua, which writes
them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import NamedTuple

MAGIC = b"\xf5HW\x01"
_HEADER = struct.Struct(">4sQHIIH")
_WEIGHTS = range(1, 23)  # of the bytes before the check
_KNOWN_HEADERS = 512  # frames that were put together, and are alike in size, begin with the same


@dataclass(frozen=True, slots=True)
class Element:
    """What an element of the line says: `id` is empty, and `put_at_ms` None, for a bare payload."""

    payload: bytes
    id: str = ""
    headers: bytes = b""
    put_at_ms: int | None = None


class Columns(NamedTuple):
    """Elements, column by column: ids as they are in the frames. `ids` and `headers` are empty where none has any;
    `put_at_ms` is 0 for a bare payload."""

    payloads: Sequence[bytes]
    ids: Sequence[bytes]
    headers: Sequence[bytes]
    put_at_ms: Sequence[int]


class _Head(NamedTuple):
    """What the first bytes of a frame say: its size, where its id and its headers end, and when it was put."""

    total: int
    id_end: int
    headers_end: int
    put_at_ms: int


_BARE = _Head(0, 0, 0, 0)  # of what is no frame all is payload


def _check(header: bytes) -> int:
    return int(sum(map(mul, _WEIGHTS, header)) % 65521)


@lru_cache(maxsize=_KNOWN_HEADERS)
def _head(head: bytes) -> _Head | None:
    """What so many bytes as a frame's header has say; None if no frame begins so."""
    if len(head) < _HEADER.size:
        return None
    _, put_at, id_length, headers_length, total, check = _HEADER.unpack(head)
    id_end = _HEADER.size + id_length
    if id_end + headers_length > total or check != _check(head):
        return None
    return _Head(total, id_end, id_end + headers_length, put_at)


def _head_of(element: bytes) -> _Head | None:
    """None for anything that is not a frame through and through, whatever it begins with."""
    if not element.startswith(MAGIC):
        return None
    head = _head(element[: _HEADER.size])
    return head if head is not None and head.total == len(element) else None


def read(element: bytes) -> Element:
    """What is no frame is a payload."""
    head = _head_of(element)
    if head is None:
        return Element(element)
    given_id = element[_HEADER.size : head.id_end].decode("utf-8", "replace")
    return Element(element[head.headers_end :], given_id, element[head.id_end : head.headers_end], head.put_at_ms)


def read_all(elements: Sequence[bytes]) -> Columns:
    """The same of many."""
    payloads: list[bytes] = []
    ids: list[bytes] = []
    headers: list[bytes] = []
    put_at_ms: list[int] = []
    for element in elements:
        _, id_end, headers_end, put_at = _head_of(element) or _BARE
        payloads.append(element[headers_end:])
        ids.append(element[_HEADER.size : id_end])
        headers.append(element[id_end:headers_end])
        put_at_ms.append(put_at)
    return Columns(payloads, ids if any(ids) else (), headers if any(headers) else (), put_at_ms)
