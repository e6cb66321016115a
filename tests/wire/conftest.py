"""The wire tests use the fixtures of `wire.fixtures`."""

from __future__ import annotations

from wire.fixtures import keys, line

__all__ = ["keys", "line"]
