"""Every setting of the service, put together from the files beside this one, each with name, unit, default, range and
reason.

Flags (`--drain-delay 5s`) win over the environment (`HEADWAY_DRAIN_DELAY=5s`), that over the four names of the pressure
protocol (REDIS_SERVER, REDIS_PORT, REDIS_DB, PRESSURE_PREFIX), those over the defaults. Knows nothing of who uses the
values. `docs/configuration.md` is made from this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from annotated_types import Ge, Le
from pydantic import ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from headwayd.config.capacity_settings import CapacitySettings
from headwayd.config.durability_settings import DurabilitySettings
from headwayd.config.fields import MIB
from headwayd.config.http_settings import HttpSettings
from headwayd.config.limit_settings import LimitSettings
from headwayd.config.metrics_settings import MetricsSettings
from headwayd.config.names import ENV_PREFIX, PressureSource, origin_of
from headwayd.config.scaling_settings import ScalingSettings
from headwayd.config.security_settings import SecuritySettings
from headwayd.config.serving_settings import ServingSettings
from headwayd.config.store_settings import StoreSettings
from headwayd.config.telemetry_settings import TelemetrySettings
from headwayd.config.values import format_span, host_of, is_local
from headwayd.domain.limits import Limits


class BadSettings(Exception):
    """Settings that cannot be used. The text has one line for each, by the name under which it was given."""


class Settings(
    ScalingSettings,
    LimitSettings,
    CapacitySettings,
    MetricsSettings,
    TelemetrySettings,
    HttpSettings,
    DurabilitySettings,
    StoreSettings,
    SecuritySettings,
    ServingSettings,
):
    """What the service runs with. `load` is the way to make one."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    @classmethod
    def load(cls, flags: Mapping[str, object] | None = None) -> Settings:
        """From flags (by field name; None = not given) and the environment. Raises BadSettings."""
        given: dict[str, Any] = {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            raise BadSettings("\n".join(_violations(error, given))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class says so
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order of the module's docstring."""
        return init_settings, env_settings, PressureSource(settings_cls)

    @field_validator("*", mode="before")
    @classmethod
    def _check_encoding(cls, value: object) -> object:
        texts = value if isinstance(value, list | tuple) else [value]
        # What is not UTF-8 in the environment or a flag, Python shows as surrogates.
        if any(isinstance(text, str) and re.search("[\ud800-\udfff]", text) for text in texts):
            raise ValueError("is not UTF-8")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        beyond = [address for address in (*self.listen, self.http_listen) if address and not is_local(address)]
        if beyond and not self.insecure and not self.knows_callers:
            lacks = "TLS, but callers need no credentials" if self.has_tls else "no TLS (tls_cert)"
            raise ValueError(
                f"{beyond[0]} is open to other machines and there is {lacks}: listen on 127.0.0.1, or say --insecure"
            )
        if self.workers > 1 and (sockets := [address for address in self.listen if not host_of(address)]):
            raise ValueError(
                f"{sockets[0]} can be served by one process only: listen on HOST:PORT, or set workers to 1"
            )
        if self.durability == "replicated" and self.store_url is None:
            raise ValueError("durability replicated needs a server with replicas: name it with redis_url")
        if self.redis_password_file is not None and self.store_url is None:
            raise ValueError("redis_password_file needs a server: name it with redis_url")
        if self.redis_sentinel_password_file is not None and "+sentinel://" not in (self.store_url or ""):
            raise ValueError("redis_sentinel_password_file needs Sentinels: name them with redis_url")
        for outer in ("max_request_bytes", "max_response_bytes"):
            if self.max_message_bytes > getattr(self, outer):
                raise ValueError(f"max_message_bytes must not exceed {outer}")
        self._check_memory()
        return self

    @property
    def limits(self) -> Limits:
        """What is in force for each process, as the rest of the service knows it."""
        return self.limits_with(
            self.capacity(self.workers),
            max_streams_per_connection=self.max_streams_per_connection,
            max_metadata_bytes=self.max_metadata_bytes,
        )

    def _check_memory(self) -> None:
        """Refuses limits that, were they reached, would need more memory than there is."""
        capacity, memory = self.capacity(self.workers), self.memory_bytes(self.workers)
        if self.max_request_bytes > capacity.max_running_bytes:
            bound = "memory_limit" if self.max_running_bytes is None else "max_running_bytes"
            raise ValueError(
                f"max_request_bytes must not exceed max_running_bytes, which is {capacity.max_running_bytes}"
                f" with {memory // MIB} MiB of memory: set it lower, or {bound} higher"
            )
        if capacity.most_bytes > memory:
            raise ValueError(
                f"max_running_calls {capacity.max_running_calls}, max_pending_calls {capacity.max_pending_calls},"
                f" max_connections {capacity.max_connections}, max_http_connections {capacity.max_http_connections}"
                f" and max_running_bytes {capacity.max_running_bytes} may"
                f" need {capacity.most_bytes // MIB} MiB of memory in each process, which has {memory // MIB}:"
                " set them lower, or memory_limit higher"
            )


def _bound_text(field: str, kind: str) -> str:
    """What is said of a value beyond its bounds, if that is what is wrong: pydantic counts spans in microseconds."""
    for rule in Settings.model_fields[field].metadata if field else ():
        match kind, rule:
            case "greater_than_equal", Ge(ge=bound):
                return f"must be at least {_shown(bound)}"
            case "less_than_equal", Le(le=bound):
                return f"must be at most {_shown(bound)}"
    return ""


def _shown(bound: object) -> str:
    return format_span(bound) if isinstance(bound, timedelta) else str(bound)


def _violations(error: ValidationError, flags: Mapping[str, object]) -> list[str]:
    lines = []
    for problem in error.errors(include_input=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        text = _bound_text(field, problem["type"]) or problem["msg"].removeprefix("Value error, ")
        origin = origin_of(field, flags) if field else ""
        lines.append(f"{origin}: {text}" if origin else text)
    return lines
