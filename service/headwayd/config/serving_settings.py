"""The settings of how the service takes calls, ends, and logs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import field_validator
from pydantic_settings import BaseSettings, NoDecode

from headwayd.config.fields import Span, ms, setting
from headwayd.config.values import host_of


class ServingSettings(BaseSettings):
    """A part of `Settings`."""

    listen: Annotated[tuple[str, ...], NoDecode] = setting(
        ("127.0.0.1:7420",),
        "Where to listen: HOST:PORT (port 0: any free one) or unix:PATH. Several: repeat the flag, or use commas.",
        unit="addresses",
    )
    insecure: bool = setting(
        False,
        "Allow to listen beyond this machine although there is no TLS, or callers need no credentials: everyone who "
        "reaches the address may listen in, or do everything. For containers whose network is the fence.",
    )
    workers: int = setting(
        1,
        "How many processes serve on these addresses, behind one that starts and restarts them. Python uses one core "
        "per process: about as many as there are cores. Connections are spread over them, not calls. More than one "
        "needs HOST:PORT addresses, and a system with SO_REUSEPORT that spreads by it (Linux).",
        unit="processes",
        ge=1,
        le=64,
    )
    acceptors: int = setting(
        1,
        "How many of gRPC's servers accept calls in one process, each those of its share of the connections to a "
        "HOST:PORT address. More than one bring more calls with `plain` only, and each has only its share of the calls "
        "that may wait. Fewer where few connections are allowed (250 each), one where the system does not spread them "
        "(other than Linux).",
        unit="servers",
        ge=1,
        le=16,
    )
    plain: bool = setting(
        False,
        "Take calls the plain way: gRPC's generated registration on Python's own event loop, and each call a step of "
        "the store for itself. Slower, with the same answers: to see whether a fault lies in how calls are taken.",
    )
    keepalive: Span = setting(
        timedelta(seconds=20),
        "After so much silence a client's connection is asked whether it lives. With the next one this bounds how long "
        "a client that vanished without a word keeps its place in line and what its streams have leased.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(hours=2),
    )
    keepalive_timeout: Span = setting(
        timedelta(seconds=10),
        "How long a client may take to answer that. Then its connection is closed and its calls are cancelled.",
        unit="span",
        ge=ms(100),
        le=timedelta(minutes=5),
    )
    drain_delay: Span = setting(
        timedelta(0),
        "From saying NOT_SERVING to refusing calls, when told to stop: as long as load balancers take to notice. About "
        "5 s in Kubernetes.",
        unit="span",
        ge=ms(0),
        le=timedelta(minutes=5),
    )
    shutdown_grace: Span = setting(
        timedelta(seconds=10),
        "How long running calls may take to end, when told to stop. Waiting ones are ended at once, with "
        "SHUTTING_DOWN. Drain delay, this and 20 s for the store should fit what the environment grants.",
        unit="span",
        ge=ms(0),
        le=timedelta(minutes=5),
    )
    log_format: Literal["console", "json"] = setting(
        "console", "Log lines for people, or one JSON object per line. Both on stderr; payloads are never logged."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least level that is logged.")

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
