"""Reads where the store is: one server, a primary that Sentinels know, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio.connection import parse_url

Host = tuple[str, int]
_SENTINEL_PORT, _SERVER_PORT = 26_379, 6_379
_SENTINEL_OPTION = "sentinel_"


class Kind(Enum):
    """How the server that takes writes is found."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store's URL, read. `options` are redis-py's for connections to its servers, `hosts` the Sentinels, or some
    nodes of the cluster, and `service` what Sentinels call the primary."""

    kind: Kind
    options: Mapping[str, Any]
    hosts: tuple[Host, ...] = ()
    service: str = ""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def database(self) -> int:
        """Its number; 0 in a cluster."""
        return int(self.options.get("db") or 0)

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return "connection_class" in self.options and "path" not in self.options


def parse_address(url: str) -> StoreAddress:
    """What a URL says that `config.values.check_store_url` has found sound."""
    scheme, _, kind_name = urlsplit(url).scheme.partition("+")
    if not kind_name:
        return StoreAddress(Kind.ONE, dict(parse_url(url)))
    kind = Kind(kind_name)
    parts = urlsplit(url)
    user, at, hosts_text = parts.netloc.rpartition("@")
    port = _SENTINEL_PORT if kind is Kind.SENTINEL else _SERVER_PORT
    hosts = tuple(_host(text, port) for text in hosts_text.split(","))
    segments = parts.path.strip("/").split("/")
    service = segments.pop(0) if kind is Kind.SENTINEL else ""
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: query.pop(name) for name in list(query) if name.startswith(_SENTINEL_OPTION)}
    # The host is a stand-in: the real one is asked for at each connection.
    options = dict(parse_url(f"{scheme}://{user}{at}unknown/{'/'.join(segments)}?{urlencode(query)}"))
    del options["host"]
    sentinel_options = {name.removeprefix(_SENTINEL_OPTION): value for name, value in own.items()}
    return StoreAddress(kind, options, hosts, service, sentinel_options)


def _host(text: str, port: int) -> Host:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or port
