"""Listens for connections that begin with TLS, and bounds how many shake hands at a time: TLS has its own part of a
connection, before anybody hears of it.

asyncio's own server does not tell of a handshake before it has succeeded, so connections are accepted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

_AT_A_TIME = 100  # connections that are accepted before others have a turn of the event loop
_PAUSE_S = 1.0  # when there are no file descriptors left


class SecureListener:
    """Of one socket; to whoever closes it, like asyncio's server. A handshake ends after `within_s`, and when `most`
    others have begun since: who does not shake hands keeps nobody out, and who does is done long before. Closed as it
    is, a connection is told nothing: there is nothing to tell it in."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        *,
        most: int,
        within_s: float,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._tls = tls
        self._most = most
        self._within_s = within_s
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._pause: asyncio.TimerHandle | None = None

    def start(self, *, backlog: int) -> None:
        """Raises OSError if nobody can listen there."""
        self._listening.listen(backlog)
        self._listening.setblocking(False)
        self._await()

    def close(self) -> None:
        """Takes no more connections, and those that shake hands end. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until that has been done."""
        if self._shaking:
            await asyncio.wait(self._shaking)

    def _await(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(_PAUSE_S, self._await)
                return
            connection.setblocking(False)
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._shaking) >= self._most:
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._shake(connection))
        self._shaking[task] = None
        task.add_done_callback(lambda done: self._shaking.pop(done, None))

    async def _shake(self, connection: socket.socket) -> None:
        """Afterwards the connection is its protocol's."""
        with contextlib.suppress(OSError):  # TLS's own errors, too, and TimeoutError: what clients do wrong is theirs
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._within_s
            )
