"""Every setting of the service: name, unit, default, range and reason, in this one place.

Flags (`--drain-delay 5s`) win over the environment (`HEADWAY_DRAIN_DELAY=5s`), that over the four names of the pressure
protocol (REDIS_SERVER, REDIS_PORT, REDIS_DB, PRESSURE_PREFIX), those over the defaults. Knows nothing of who uses the
values. `docs/configuration.md` is made from this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

import platformdirs
from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from headwayd.config.names import ENV_PREFIX, PressureSource, origin_of
from headwayd.config.values import check_store_url, format_span, host_of, is_local, parse_span
from headwayd.domain.limits import MAX_DELAY_MS, MAX_LEASE_MS, MAX_WAIT_MS, MIN_LEASE_MS, Limits

_STORE_PARTS = ("redis_server", "redis_port", "redis_db")
_KIB = 1024
_MIB = 1024 * _KIB
_DEFAULTS = Limits()


class BadSettings(Exception):
    """Settings that cannot be used. The text has one line for each, by the name under which it was given."""


Span = Annotated[timedelta, BeforeValidator(parse_span)]


def _setting(default: Any, text: str, *, unit: str = "", shown: str | None = None, **bounds: Any) -> Any:
    """One setting: what it is and why one would change it. `shown` stands in the reference for a varying default."""
    return Field(default, description=text, json_schema_extra={"unit": unit, "shown": shown}, **bounds)


def _data_folder() -> Path:
    try:
        return Path(platformdirs.user_data_dir("headway", appauthor=False))
    except RuntimeError:  # a user whom nobody knows, as in containers; refused only if no other folder is given
        return Path("~/.local/share/headway")


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


class Settings(BaseSettings):
    """What the service runs with. `load` is the way to make one."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    listen: Annotated[tuple[str, ...], NoDecode] = _setting(
        ("127.0.0.1:7420",),
        "Where to listen: HOST:PORT (port 0: any free one) or unix:PATH. Several: repeat the flag, or use commas.",
        unit="addresses",
    )
    insecure: bool = _setting(
        False,
        "Allow to listen beyond this machine although there is neither TLS nor a password: everyone who reaches the "
        "address may do everything. Needed in containers, whose network is the fence.",
    )
    workers: int = _setting(
        1,
        "How many processes serve on these addresses, behind one that starts and restarts them. Python uses one core "
        "per process: about as many as there are cores. Connections are spread over them, not calls. More than one "
        "needs HOST:PORT addresses, and a system with SO_REUSEPORT that spreads by it (Linux).",
        unit="processes",
        ge=1,
        le=64,
    )
    plain: bool = _setting(
        False,
        "Take calls the plain way: gRPC's generated registration on Python's own event loop, and each call a step of "
        "the store for itself. Slower, with the same answers: to see whether a fault lies in how calls are taken.",
    )
    redis_url: SecretStr | None = _setting(
        None,
        "The server to keep queues on: redis://, rediss:// or unix://. Without any redis setting the embedded store is "
        "used; with one it never is. Options: db, username, password; for rediss:// also those of TLS (ssl_…).",
        unit="URL",
        shown="(the embedded store)",
    )
    redis_server: str | None = _setting(
        None, "The server's host, as pressure names it. Not looked at if a URL is given.", unit="host"
    )
    redis_port: int | None = _setting(
        None, "The server's port, as pressure names it (then 6379 is the default).", unit="port", ge=1, le=65_535
    )
    redis_db: int | None = _setting(
        None, "The server's database, as pressure names it (then 0 is the default).", unit="number", ge=0, le=65_535
    )
    prefix: str = _setting(
        "__pressure__",
        "What every key begins with. Clients of the pressure protocol share queues under the same prefix; another "
        "prefix is another world on the same server.",
        min_length=1,
        max_length=100,
    )
    data_dir: Path = _setting(
        _data_folder(),
        "Where the embedded store keeps its data. One service at a time.",
        unit="folder",
        shown="`headway` in the user's data folder",
    )
    store_timeout: Span = _setting(
        timedelta(seconds=1),
        "How long one answer of the store may take before it counts as silent. Every call is answered within 2 s when "
        "the store is down, so more than that helps nobody.",
        unit="span",
        ge=_ms(50),
        le=_ms(2_000),
    )
    keepalive: Span = _setting(
        timedelta(seconds=20),
        "After so much silence a client's connection is asked whether it lives. With the next one this bounds how long "
        "a client that vanished without a word keeps its place in line and what its streams have leased.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(hours=2),
    )
    keepalive_timeout: Span = _setting(
        timedelta(seconds=10),
        "How long a client may take to answer that. Then its connection is closed and its calls are cancelled.",
        unit="span",
        ge=_ms(100),
        le=timedelta(minutes=5),
    )
    max_running_calls: int = _setting(
        20_000,
        "The most calls and streams at a time in one process; streams leave a tenth to calls. One that watches takes "
        "about 31 KB: more need more memory, or more processes.",
        unit="calls",
        ge=10,
        le=1_000_000,
    )
    max_pending_calls: int = _setting(
        10_000,
        "The most calls that wait to be begun in one process; gRPC ends more with CANCELLED. Each takes about 20 KB. "
        "Fewer: under overload calls are younger when they are served, and more of them are in time. More: more "
        "clients may come at the same moment.",
        unit="calls",
        ge=100,
        le=100_000,
    )
    drain_delay: Span = _setting(
        timedelta(0),
        "From saying NOT_SERVING to refusing calls, when told to stop: as long as load balancers take to notice. About "
        "5 s in Kubernetes.",
        unit="span",
        ge=_ms(0),
        le=timedelta(minutes=5),
    )
    shutdown_grace: Span = _setting(
        timedelta(seconds=10),
        "How long running calls may take to end, when told to stop. Waiting ones are ended at once, with "
        "SHUTTING_DOWN. Drain delay, this and 20 s for the store should fit what the environment grants.",
        unit="span",
        ge=_ms(0),
        le=timedelta(minutes=5),
    )
    log_format: Literal["console", "json"] = _setting(
        "console", "Log lines for people, or one JSON object per line. Both on stderr; payloads are never logged."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "The least level that is logged.")
    max_message_bytes: int = _setting(
        _DEFAULTS.max_message_bytes,
        "The most bytes of one message: payload, id and headers together. Queues are for work, not for files.",
        unit="bytes",
        ge=_KIB,
        le=64 * _MIB,
    )
    max_batch_messages: int = _setting(
        _DEFAULTS.max_batch_messages,
        "The most items of one batch. One batch is one step of the store, which serves nobody else meanwhile.",
        unit="items",
        ge=1,
        le=5_000,
    )
    max_request_bytes: int = _setting(
        _DEFAULTS.max_request_bytes, "The most bytes of one request.", unit="bytes", ge=64 * _KIB, le=256 * _MIB
    )
    max_response_bytes: int = _setting(
        _DEFAULTS.max_response_bytes,
        "The most bytes of messages in one answer. Stock gRPC clients refuse answers above 4 MiB.",
        unit="bytes",
        ge=64 * _KIB,
        le=256 * _MIB,
    )
    max_wait: Span = _setting(
        _ms(MAX_WAIT_MS), "The longest wait of one call.", unit="span", ge=_ms(0), le=_ms(MAX_WAIT_MS)
    )
    max_lease: Span = _setting(
        _ms(MAX_LEASE_MS), "The longest lease.", unit="span", ge=_ms(MIN_LEASE_MS), le=_ms(MAX_LEASE_MS)
    )
    max_delay: Span = _setting(
        _ms(MAX_DELAY_MS), "The longest delay of a message.", unit="span", ge=_ms(0), le=_ms(MAX_DELAY_MS)
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

    @model_validator(mode="before")
    @classmethod
    def _a_url_outdoes_its_parts(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("redis_url") is None:
            return given
        return {name: value for name, value in given.items() if name not in _STORE_PARTS}

    @field_validator("*", mode="before")
    @classmethod
    def _check_encoding(cls, value: object) -> object:
        texts = value if isinstance(value, list | tuple) else [value]
        # What is not UTF-8 in the environment or a flag, Python shows as surrogates.
        if any(isinstance(text, str) and re.search("[\ud800-\udfff]", text) for text in texts):
            raise ValueError("is not UTF-8")
        return value

    @field_validator("listen", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        texts = value.split(",") if isinstance(value, str) else value
        return [text.strip() for text in texts] if isinstance(texts, list | tuple) else texts

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        if not addresses:
            raise ValueError("name at least one address")
        for address in addresses:
            host_of(address)
        return addresses

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        if not url.get_secret_value():
            raise ValueError("is set but empty: unset it to use the embedded store")
        check_store_url(url.get_secret_value())
        return url

    @field_validator("redis_server")
    @classmethod
    def _check_server(cls, host: str | None) -> str | None:
        if host is not None and not re.fullmatch(r"[^\s/@?#]+", host):
            raise ValueError("must be a host name or an address")
        return host

    @field_validator("redis_port", mode="before")
    @classmethod
    def _explain_service_links(cls, value: object) -> object:
        if isinstance(value, str) and value.startswith("tcp://"):
            raise ValueError(
                "was set by Kubernetes for a service named redis: set enableServiceLinks: false, or HEADWAY_REDIS_URL"
            )
        return value

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in prefix) or set(prefix) & set("{}"):
            raise ValueError("may have neither control characters nor braces")
        return prefix

    @field_validator("data_dir")
    @classmethod
    def _check_data_dir(cls, folder: Path) -> Path:
        if folder == Path():
            raise ValueError("is set but empty")
        try:
            return folder.expanduser().absolute()
        except RuntimeError:
            raise ValueError("is in the home folder of nobody who is known") from None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        beyond = [address for address in self.listen if not is_local(address)]
        if beyond and not self.insecure:
            raise ValueError(
                f"{beyond[0]} is open to other machines and there is no TLS yet: listen on 127.0.0.1, or say --insecure"
            )
        if self.workers > 1 and (sockets := [address for address in self.listen if not host_of(address)]):
            raise ValueError(
                f"{sockets[0]} can be served by one process only: listen on HOST:PORT, or set workers to 1"
            )
        for outer in ("max_request_bytes", "max_response_bytes"):
            if self.max_message_bytes > getattr(self, outer):
                raise ValueError(f"max_message_bytes must not exceed {outer}")
        return self

    @property
    def store_url(self) -> str | None:
        """The server to use, or None for the embedded store."""
        if self.redis_url is not None:
            return self.redis_url.get_secret_value()
        if all(getattr(self, part) is None for part in _STORE_PARTS):
            return None
        host = self.redis_server or "localhost"
        shown = f"[{host}]" if ":" in host else quote(host)
        return f"redis://{shown}:{self.redis_port or 6379}/{self.redis_db or 0}"

    @property
    def limits(self) -> Limits:
        """As the rest of the service knows them."""
        return Limits(
            max_message_bytes=self.max_message_bytes,
            max_batch_messages=self.max_batch_messages,
            max_request_bytes=self.max_request_bytes,
            max_response_bytes=self.max_response_bytes,
            max_wait_ms=self.max_wait // _ms(1),
            max_lease_ms=self.max_lease // _ms(1),
            max_delay_ms=self.max_delay // _ms(1),
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
