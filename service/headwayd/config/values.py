"""Values as people write them: spans of time, addresses to listen on, URLs. Knows no setting."""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

_SPAN = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?")
# What may stand behind the question mark of a store's URL. Times and repeats are the service's own affair.
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_NO_SERVER = "names no server: redis://HOST:PORT/DB or unix:///PATH"
_URL_OPTIONS = frozenset({"db", "username", "password"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_TLS_OPTIONS = frozenset(
    f"ssl_{each}" for each in ("ca_certs", "ca_path", "certfile", "keyfile", "password", "cert_reqs", "check_hostname")
)
_SHOWN = (_URL_OPTIONS | _SENTINEL_OPTIONS | _TLS_OPTIONS) - {"password", "sentinel_password", "ssl_password"}
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def parse_span(value: object) -> object:
    """A span from text: a number with ms, s, m, h or d; seconds without."""
    if not isinstance(value, str):
        return value
    match = _SPAN.fullmatch(value.strip())
    if not match:
        raise ValueError(f"{value!r} is no span of time: write 500ms, 5s, 2m, 12h or 7d")
    try:
        return float(match["number"]) * _UNITS[match["unit"] or "s"]
    except OverflowError:
        raise ValueError("is longer than any span of time can be") from None


def format_span(span: timedelta) -> str:
    """The shortest text that `parse_span` reads back."""
    for unit in reversed(_UNITS) if span else ("s",):
        if not span % _UNITS[unit]:
            return f"{span // _UNITS[unit]}{unit}"
    return f"{span.total_seconds()}s"


def masked_url(url: str) -> str:
    """A URL that may be shown: without its passwords, and without the values of options that are not known."""
    without = re.sub(r"(?<=//)([^/@?#:]*:)[^/?#]*(?=@)", r"\1***", url, count=1)
    return re.sub(r"(?<=[?&])([^=&]*)=[^&]*", lambda each: each[0] if each[1] in _SHOWN else f"{each[1]}=***", without)


def check_store_url(url: str) -> None:
    """Raises ValueError unless the URL names a store, a database that can be one, and only options that are known."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"must begin with {', '.join(f'{scheme}://' for scheme in _SCHEMES)}")
    _, _, kind = parts.scheme.partition("+")
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise ValueError(_NO_SERVER)
    else:
        _check_hosts(parts.netloc.rpartition("@")[2], may_be_many=bool(kind))
    segments = parts.path.strip("/").split("/")
    if kind == "sentinel" and not segments.pop(0):
        raise ValueError("names no primary: redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB")
    options = parse_qs(parts.query, keep_blank_values=True)
    known = _URL_OPTIONS | (_TLS_OPTIONS if parts.scheme.startswith("rediss") else frozenset())
    known |= _SENTINEL_OPTIONS if kind == "sentinel" else frozenset()
    if unknown := sorted(options.keys() - known):
        raise ValueError(f"has an option that is not known: {unknown[0]} (known are {', '.join(sorted(known))})")
    databases = options.get("db", [])
    if parts.scheme != "unix":
        databases = [*databases, "/".join(segments)]
    _check_databases([database for database in databases if database], is_cluster=kind == "cluster")


def _check_hosts(text: str, *, may_be_many: bool) -> None:
    hosts = text.split(",")
    if len(hosts) > 1 and not may_be_many:
        raise ValueError("names several servers: say redis+sentinel:// or redis+cluster://")
    for host in hosts:
        try:
            parts = urlsplit(f"//{host}")
            is_host = bool(parts.hostname)
            parts.port  # noqa: B018 - reading it is what checks it
        except ValueError:
            raise ValueError("has a port that is none: 1 to 65535") from None
        if not is_host:
            raise ValueError(_NO_SERVER)


def _check_databases(databases: list[str], *, is_cluster: bool) -> None:
    for database in databases:
        if not (database.isascii() and database.isdigit() and int(database) <= 65_535):
            raise ValueError("has a database that is none: 0 to 65535")
        if is_cluster and int(database):
            raise ValueError("has a database other than 0, and a cluster has no other")


def host_of(address: str) -> str:
    """The host of HOST:PORT, "" for a unix socket. Raises ValueError for what is no address."""
    if address.startswith("unix:"):
        if address in ("unix:", "unix://"):
            raise ValueError("unix: needs a path")
        return ""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
    if not colon or not host or not is_port or (":" in host and not (host[0] == "[" and host[-1] == "]")):
        raise ValueError(f"{address!r} is no address: write HOST:PORT, [IPV6]:PORT or unix:PATH")
    return host.strip("[]")


def is_local(address: str) -> bool:
    """Whether only this machine can reach it."""
    host = host_of(address)
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may be any machine's
        return False
