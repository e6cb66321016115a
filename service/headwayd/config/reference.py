"""Shows the settings: all of them as a reference, or the ones in force with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from headwayd.config.names import PRESSURE_NAMES, flag_of, origin_of, variable_of
from headwayd.config.settings import Settings
from headwayd.config.values import format_span, masked_url

_HEAD = """\
# Configuration

Made by `make gen` from the settings in `service/headwayd/config/`: change it there.

Every setting has a flag of `headwayd serve` and a variable in the environment; the flag wins. `headwayd config` shows
what is in force and where it is from. Spans are written `500ms`, `5s`, `2m`, `12h` or `7d`; a bare number is seconds.
What is out of its range is refused, never corrected.

REDIS_SERVER, REDIS_PORT, REDIS_DB and PRESSURE_PREFIX mean what they mean to every client of the pressure protocol. If
one of the first three, or a URL, is given, that server is used, never the embedded store.

| setting | default | range | what it is, and why to change it |
|---|---|---|---|
"""


def shown(value: object) -> str:
    """A value as one would write it; secrets masked."""
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return masked_url(value.get_secret_value())
    if isinstance(value, timedelta):
        return format_span(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return masked_url(text) if "://" in text else text


def effective(settings: Settings, flags: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """(name, value, origin) of every setting in force."""
    followed = settings.capacity(settings.workers)  # what was not given and has no fixed default
    return [
        (name, shown(getattr(followed, name, getattr(settings, name))), origin_of(name, flags))
        for name in Settings.model_fields
    ]


def markdown() -> str:
    """The text of docs/configuration.md."""
    return _HEAD + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    names = [f"`{flag_of(name)}`", f"`{variable_of(name)}`"]
    if name in PRESSURE_NAMES:
        names.append(f"`{PRESSURE_NAMES[name]}`")
    extra: Any = field.json_schema_extra
    default = extra["shown"] or (f"`{shown(field.default)}`" if field.default is not None else "")
    return f"| {'<br>'.join(names)} | {default} | {_range(field, extra['unit'])} | {field.description} |\n"


def _range(field: FieldInfo, unit: str) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    low = high = ""
    for rule in field.metadata:
        match rule:
            case Ge(ge=bound):
                low = shown(bound)
            case Le(le=bound):
                high = shown(bound)
            case MinLen(min_length=bound):
                low = shown(bound)
            case MaxLen(max_length=bound):
                high, unit = shown(bound), "characters"
    return f"{low} to {high} {'' if unit == 'span' else unit}".strip() if low and high else unit
