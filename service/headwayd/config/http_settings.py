"""The settings of the HTTP port."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import field_validator
from pydantic_settings import BaseSettings, NoDecode

from headwayd.config.fields import setting
from headwayd.config.values import host_of

_ORIGIN = re.compile(r"https?://[^/\s]+")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")


def _as_browsers_say(origin: str) -> str:
    """In small letters, and without a port that its scheme means anyway: so it is compared."""
    origin = origin.lower()
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


class HttpSettings(BaseSettings):
    """A part of `Settings`."""

    http_listen: str | None = setting(
        None,
        "Where to serve plain HTTP: /metrics, /healthz, /readyz and, unless http_calls is off, the calls, as HOST:PORT "
        "(port 0: any free one; [::]: of IPv6 and IPv4). Where callers are not known, whoever reaches it may read the "
        "names and numbers of queues.",
        unit="address",
        shown="(none: no HTTP)",
    )
    http_calls: bool = setting(
        True,
        "Take calls at http_listen, too, for browsers and others without gRPC: by Connect, gRPC-Web or plain JSON.",
    )
    http_origins: Annotated[tuple[str, ...], NoDecode] = setting(
        (),
        "Pages of which other sites may call at http_listen from a browser, as https://HOST, with commas between; * "
        "for all.",
        unit="origins",
        shown="(none but its own)",
    )
    http_hosts: Annotated[tuple[str, ...], NoDecode] = setting(
        (),
        "By which other names http_listen may be called, without port, with commas between, where callers need no "
        "credentials and it listens on this machine only: a page of any site may have its name lead here. Where it "
        "listens beyond, any name will do unless some are given.",
        unit="names",
        shown="(addresses and localhost)",
    )

    dashboard: bool = setting(
        True,
        "Serve the dashboard at http_listen, unless http_calls is off: / and /dashboard/. It shows what the caller may "
        "see.",
    )
    dashboard_actions: bool = setting(
        False,
        "Let whoever reaches the dashboard pause, purge and redrive there, too, while callers are not known (no "
        "auth_file, no jwks). Where they are known, their admin role decides.",
    )

    @field_validator("http_listen")
    @classmethod
    def _check_http_listen(cls, address: str | None) -> str | None:
        if address is not None and not host_of(address):
            raise ValueError("must be HOST:PORT")
        return address

    @field_validator("http_origins", "http_hosts", mode="before")
    @classmethod
    def _split_sites(cls, value: object) -> object:
        texts = value.split(",") if isinstance(value, str) else value
        return [text.strip() for text in texts if text.strip()] if isinstance(texts, list | tuple) else texts

    @field_validator("http_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin: write https://HOST or https://HOST:PORT")
        return tuple(_as_browsers_say(origin) for origin in origins)

    @field_validator("http_hosts")
    @classmethod
    def _check_http_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no name of a host: write it without scheme and port")
        return hosts
