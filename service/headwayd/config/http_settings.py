"""The settings of the HTTP port."""

from __future__ import annotations

from pydantic import field_validator
from pydantic_settings import BaseSettings

from headwayd.config.fields import setting
from headwayd.config.values import host_of


class HttpSettings(BaseSettings):
    """A part of `Settings`."""

    http_listen: str | None = setting(
        None,
        "Where to serve plain HTTP: /metrics, /healthz and /readyz, as HOST:PORT (port 0: any free one). Whoever "
        "reaches it may read the names and numbers of queues, and nothing else.",
        unit="address",
        shown="(none: no HTTP)",
    )

    @field_validator("http_listen")
    @classmethod
    def _check_http_listen(cls, address: str | None) -> str | None:
        if address is not None and not host_of(address):
            raise ValueError("must be HOST:PORT")
        return address
