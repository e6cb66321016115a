"""Fetches a small document by HTTP, within a time for all of it. Not what is in it.

Python's own client is asked on a thread, and its timeout is one for each step: a server that sends a byte now and then
could keep it for hours. So the time is up elsewhere, on the event loop, which then cuts the connection; and the thread
is one that no end of the process waits for, should it hang all the same (while a name is looked up, nothing can be
cut).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

_MOST_BYTES = 1024 * 1024


class FetchFailed(Exception):
    """There is no such document to be had now. The text quotes nothing of the URL."""


class _Cut:
    """Connections that can be cut from another thread, also those that are made later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] | None = []

    def add(self, made: socket.socket) -> None:
        """One more. Raises OSError if it comes too late."""
        with self._lock:
            if self._sockets is None:
                raise OSError("the time is up")
            self._sockets.append(made.dup())  # TLS takes the one that was made

    def now(self) -> None:
        """Cuts all of them: whoever reads there finds that it has ended. Idempotent."""
        with self._lock:
            sockets, self._sockets = self._sockets or [], None
        for one in sockets:
            with one, contextlib.suppress(OSError):  # the other side may have ended it
                one.shutdown(socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    """Over TCP, and below TLS."""

    cut: _Cut

    def connect(self) -> None:
        super().connect()
        self.cut.add(self.sock)


class _Secure(http.client.HTTPSConnection, _Plain):
    """Whose TLS begins when the connection below it can be cut."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made_by(_Plain), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made_by(_Secure), req)

    def _made_by(self, kind: type[_Plain]) -> Callable[..., http.client.HTTPConnection]:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            made = kind(host, **options)
            made.cut = self._cut
            return made

        return connection


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Nobody else than the URL says is asked."""

    def redirect_request(self, *_: Any) -> None:
        """None: the answer stays an error."""


async def fetched(url: str, *, within_s: float) -> bytes:
    """The document. Raises FetchFailed, or TimeoutError."""
    loop, cut = asyncio.get_running_loop(), _Cut()
    done: asyncio.Future[bytes] = loop.create_future()

    def tell(set_it: Callable[[Any], None], what: object) -> None:
        if not done.done():
            set_it(what)

    def fetch() -> None:
        try:
            document = _fetch(url, cut, within_s)
        except Exception as error:  # noqa: BLE001 - what a server can bring about in Python's client is not told anywhere
            outcome: tuple[Callable[[Any], None], object] = done.set_exception, FetchFailed(_why(error))
        else:
            outcome = done.set_result, document
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=fetch, name="fetch", daemon=True).start()
    try:
        async with asyncio.timeout(within_s):
            return await done
    finally:
        cut.now()


def _fetch(url: str, cut: _Cut, step_s: float) -> bytes:
    opener = urllib.request.build_opener(_Handler(cut), _NoRedirects)
    with opener.open(url, timeout=step_s) as response:
        document: bytes = response.read(_MOST_BYTES + 1)
    if len(document) > _MOST_BYTES:
        raise FetchFailed(f"has more than {_MOST_BYTES} bytes")
    return document


def _why(error: Exception) -> str:
    match error:
        case FetchFailed():
            return str(error)
        case urllib.error.HTTPError():
            error.close()
            return f"the answer was {error.code}"
        case urllib.error.URLError() if isinstance(error.reason, OSError):
            return str(error.reason)
        case OSError():
            return str(error)
        case _:  # such as a line that is no HTTP, which may be anything
            return type(error).__name__
