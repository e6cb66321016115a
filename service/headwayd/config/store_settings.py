"""The settings of the store: which server, under which keys, or where the embedded one keeps its data."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import platformdirs
from pydantic import SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings

from headwayd.config.fields import Span, ms, setting
from headwayd.config.values import check_store_url
from headwayd.domain.limits import STORE_BUDGET_MS

_STORE_PARTS = ("redis_server", "redis_port", "redis_db")


def _data_folder() -> Path:
    try:
        return Path(platformdirs.user_data_dir("headway", appauthor=False))
    except RuntimeError:  # a user whom nobody knows, as in containers; refused only if no other folder is given
        return Path("~/.local/share/headway")


class StoreSettings(BaseSettings):
    """A part of `Settings`."""

    redis_url: SecretStr | None = setting(
        None,
        "The server to keep queues on: redis://, rediss:// or unix://; the primary that Sentinels know: "
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB; a cluster: redis+cluster://HOST:PORT,HOST:PORT. Without any "
        "redis setting the embedded store is used; with one it never is. Options: db, username, password; for "
        "rediss://, rediss+sentinel:// and rediss+cluster:// also those of TLS (ssl_…); for Sentinels "
        "sentinel_username and sentinel_password.",
        unit="URL",
        shown="(the embedded store)",
    )
    redis_server: str | None = setting(
        None, "The server's host, as pressure names it. Not looked at if a URL is given.", unit="host"
    )
    redis_port: int | None = setting(
        None, "The server's port, as pressure names it (then 6379 is the default).", unit="port", ge=1, le=65_535
    )
    redis_db: int | None = setting(
        None, "The server's database, as pressure names it (then 0 is the default).", unit="number", ge=0, le=65_535
    )
    redis_password_file: Path | None = setting(
        None,
        "A file with the server's password, in place of one in the URL, where it shows in the list of processes. Read "
        "for each connection, so it may be changed while the service runs.",
        unit="file",
    )
    redis_sentinel_password_file: Path | None = setting(
        None,
        "The same for the Sentinels' own password, in place of sentinel_password in the URL.",
        unit="file",
    )
    prefix: str = setting(
        "__pressure__",
        "What every key begins with. Clients of the pressure protocol share queues under the same prefix; another "
        "prefix is another world on the same server.",
        min_length=1,
        max_length=100,
    )
    data_dir: Path = setting(
        _data_folder(),
        "Where the embedded store keeps its data. One service at a time.",
        unit="folder",
        shown="`headway` in the user's data folder",
    )
    store_timeout: Span = setting(
        timedelta(seconds=1),
        "How long one answer of the store may take before it counts as silent. Every call is answered within 2 s when "
        "the store is down, so more than that helps nobody.",
        unit="span",
        ge=ms(50),
        le=ms(STORE_BUDGET_MS),
    )

    @model_validator(mode="before")
    @classmethod
    def _a_url_outdoes_its_parts(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("redis_url") is None:
            return given
        return {name: value for name, value in given.items() if name not in _STORE_PARTS}

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        if not url.get_secret_value():
            raise ValueError("is set but empty: unset it to use the embedded store")
        check_store_url(url.get_secret_value())
        return url

    @field_validator("redis_password_file", "redis_sentinel_password_file")
    @classmethod
    def _check_password_file(cls, file: Path | None) -> Path | None:
        if file is None:
            return None
        try:
            if not file.read_text().rstrip("\r\n"):
                raise ValueError("has no password in it")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot be read: {error}") from None
        return file.absolute()

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
