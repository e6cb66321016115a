"""How the C library's allocator treats memory that was freed: part of the price of every large request."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# glibc's numbers for mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES: Final = 32 * 1024 * 1024  # at the end of the heap, which stay with the process
_MAPPED_BYTES: Final = 4 * 1024 * 1024  # what is as large has pages of its own, and gives them back
_OPERATORS_OWN: Final = ("GLIBC_TUNABLES", "MALLOC_")


def keep_freed_memory() -> None:
    """Has glibc keep what was freed for what comes next. By itself it gives back all but a little, and each batch of
    100 KB gets its pages anew, one fault for 4 KB. Does nothing with another C library, or if the environment sets the
    allocator already."""
    if any(name.startswith(_OPERATORS_OWN) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
