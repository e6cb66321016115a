"""Fetches a small document by HTTP, within a time for all of it. Not what is in it."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_MOST_BYTES = 1024 * 1024
_OK = 200


class FetchFailed(Exception):
    """There is no such document to be had now. The text quotes nothing of the URL, nor of the answer."""


async def fetched(url: str, *, within_s: float) -> bytes:
    """The document; nobody else than the URL says is asked for it, by the environment's proxy if that names one.
    However slowly it comes, its connection is cut when the time is over. Raises FetchFailed, or TimeoutError."""
    import httpx  # noqa: PLC0415 - only who has such a URL waits for it to be loaded

    try:
        async with (
            asyncio.timeout(within_s),
            _client(within_s) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != _OK:
                raise FetchFailed(f"the answer was {response.status_code}")
            document = b""
            async for part in response.aiter_bytes():
                document += part
                if len(document) > _MOST_BYTES:
                    raise FetchFailed(f"has more than {_MOST_BYTES} bytes")
            return document
    except httpx.ConnectError as error:
        raise FetchFailed(str(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:  # such as a line that is no HTTP, which may be anything
        raise FetchFailed(type(error).__name__) from error


def _client(within_s: float) -> httpx.AsyncClient:
    import httpx  # noqa: PLC0415 - as above

    try:
        return httpx.AsyncClient(timeout=within_s, verify=ssl.create_default_context())
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # by SOCKS, or no URL; it may have a password
        raise FetchFailed("the environment names a proxy that cannot be used") from error
