"""Whose page a request comes from, by what browsers say of it (`Sec-Fetch-Site`, `Origin`) and pages cannot change:
https://www.w3.org/TR/fetch-metadata/. What is no browser says nothing of the kind."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

ANY = "*"
_OWN_SITE = ("same-origin", "none")  # none: somebody has typed it, or a bookmark
_OF_HOSTS = {"http": 80, "https": 443}


class Origins:
    """Those whose pages may call beside the port's own; ANY: all."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = {origin.lower() for origin in allowed}

    def is_foreign(self, headers: Headers, scheme: str) -> bool:
        """Whether the request comes from a page of none of them."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and (ANY in self._allowed or origin.lower() in self._allowed):
            return False
        if site is not None:
            return site not in _OWN_SITE
        return origin is not None and not _is_own(origin, headers.get("host", ""), scheme)


def is_hidden(headers: Headers) -> bool:
    """Whether a browser asks by a GET without saying whose page it shows: it says so only to https and its own machine.
    All browsers call themselves Mozilla, whatever a page wants. A header that pages of other sites may send only after
    asking shows that it is none of theirs."""
    return (
        headers.get("user-agent", "").startswith("Mozilla/")
        and not {"origin", "sec-fetch-site", "x-queue"} & {*headers}
        and not headers.get("authorization", "").lower().startswith("bearer ")
    )


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Whether it is where the request went. What ends TLS before this service makes https of its http."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _OF_HOSTS[parts.scheme]
        called = urlsplit(f"{parts.scheme}://{host}")
        return (
            (scheme == "http" or parts.scheme == "https")
            and parts.hostname == called.hostname
            and port == (called.port or _OF_HOSTS[parts.scheme])
        )
    except (ValueError, KeyError):
        return False
