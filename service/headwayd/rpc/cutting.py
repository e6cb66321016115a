"""Hands the end of a call's wait from the guard, which knows the caller, to the servicer, which makes the order.

By a context variable: a handler runs in a context of its own, and gRPC's has no room for anything of ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from headwayd.domain.waiting import CutOff

_OF_THIS_CALL: ContextVar[CutOff | None] = ContextVar("cut_off", default=None)


@contextlib.contextmanager
def may_be_cut_off(by: CutOff) -> Iterator[None]:
    """Within this block the call that is served knows it."""
    before = _OF_THIS_CALL.set(by)
    try:
        yield
    finally:
        _OF_THIS_CALL.reset(before)


def cut_off_of_this_call() -> CutOff | None:
    """None if nothing ends its wait but time."""
    return _OF_THIS_CALL.get()
