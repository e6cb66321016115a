"""How a setting is written down: the pieces that the files of settings share."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from headwayd.config.values import parse_span

KIB = 1024
MIB = 1024 * KIB

Span = Annotated[timedelta, BeforeValidator(parse_span)]


def setting(default: Any, text: str, *, unit: str = "", shown: str | None = None, **bounds: Any) -> Any:
    """One setting: what it is and why one would change it. `shown` stands in the reference for a varying default."""
    return Field(default, description=text, json_schema_extra={"unit": unit, "shown": shown}, **bounds)


def ms(milliseconds: int) -> timedelta:
    """So many milliseconds."""
    return timedelta(milliseconds=milliseconds)
