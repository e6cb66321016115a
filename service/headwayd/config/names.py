"""The names by which settings are given, and which of them one was given by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

ENV_PREFIX = "HEADWAY_"
# What the pressure protocol calls them. An empty value counts as given, and is refused.
PRESSURE_NAMES = {
    "redis_server": "REDIS_SERVER",
    "redis_port": "REDIS_PORT",
    "redis_db": "REDIS_DB",
    "prefix": "PRESSURE_PREFIX",
}


class PressureSource(PydanticBaseSettingsSource):
    """The names of the pressure protocol in the environment."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - as in the base
        return os.environ.get(PRESSURE_NAMES.get(field_name, "")), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {name: os.environ[variable] for name, variable in PRESSURE_NAMES.items() if variable in os.environ}


def origin_of(field: str, flags: Mapping[str, object]) -> str:
    """Where a setting comes from: its flag, its variable, or "default"."""
    if flags.get(field) is not None:
        return flag_of(field)
    wanted = variable_of(field)
    for name in os.environ:
        if name.upper() == wanted:
            return name
    pressure = PRESSURE_NAMES.get(field)
    return pressure if pressure and pressure in os.environ else "default"


def flag_of(field: str) -> str:
    """The flag of a setting."""
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + field.upper()
