"""The one guard of tracing: a job must not fail for its spans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import structlog

log: Any = structlog.get_logger(__name__)
_Given = ParamSpec("_Given")


def harmless(tell: Callable[_Given, None]) -> Callable[_Given, None]:
    """What it tells may be lost; whoever calls it goes on. A defect is logged with its trace, every time."""

    @functools.wraps(tell)
    def guarded(*args: _Given.args, **kwargs: _Given.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:  # as the file says
            log.exception("a defect of tracing")

    return guarded
