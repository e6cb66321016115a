"""The server of the HTTP port: uvicorn in this process and on its event loop, on sockets of our own.

uvicorn by itself would take over signals, end the process when it cannot listen, and set up logging; none of that is
its business here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import uvicorn

from headwayd.domain.kept import kept
from headwayd.http.certified import Certified
from headwayd.http.doors import Behind, application
from headwayd.http.handshakes import SecureListener
from headwayd.http.protocol import bounded_to
from headwayd.sockets import CannotListen, bound_at

_HEAD_BYTES = 16 * 1024  # of a request
_BACKLOG = 128
_START_S = 10.0
_LAST_ANSWERS_S = 2
_ASK_EVERY_S = 1  # who does not answer when it is asked whether it is still there; the least that a kernel takes


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listen_securely: Callable[..., SecureListener] | None) -> None:
        super().__init__(config)
        self._listen_securely = listen_securely
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens. uvicorn's own would give every handshake a minute, and take any number of them."""
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state={}
            )
            return made

        self.servers = []
        for one in sockets or ():
            if self._listen_securely is None:
                self.servers.append(await loop.create_server(protocol, sock=one, backlog=config.backlog))
            else:
                listener = self._listen_securely(one, protocol)
                listener.start(backlog=config.backlog)
                self.servers.append(listener)  # type: ignore[arg-type]  # all that it asks of a server it has
        self.started = True
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's."""
        yield


class HttpServer:
    """Serves what is `behind` on `listen`, "HOST:PORT"; over TLS with `tls`, whose handshakes may take `handshake_s`.
    With `reuse_port` other workers listen there, too. As at the gRPC port, who says nothing for `keepalive` is asked
    whether it is still there, and has vanished if no answer comes within `keepalive_timeout`.

    Life: `start`, `stop`. Both belong to one event loop.
    """

    def __init__(
        self,
        behind: Behind,
        *,
        listen: str,
        keepalive: timedelta,
        keepalive_timeout: timedelta,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
        handshake_s: float,
    ) -> None:
        self._listen = listen
        self._keepalive = keepalive
        self._keepalive_timeout = keepalive_timeout
        self._reuse_port = reuse_port
        self._application = application(behind)
        config = uvicorn.Config(
            Certified(self._application.app, origins=behind.origins),
            http=bounded_to(behind.most_connections, behind.read_s),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what clients do wrong is theirs
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
        config.load()
        listen_securely = None
        if tls is not None:  # made by whoever follows its files; as many may shake hands as are served
            listen_securely = partial(SecureListener, tls=tls, most=behind.most_connections, within_s=handshake_s)
        self._scheme = "http" if tls is None else "https"
        self._server = _Server(config, listen_securely)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begins to listen; the URL with the real port. Raises CannotListen."""
        sockets, address = bound_at(self._listen, partial(_bind, reuse_port=self._reuse_port))
        for one in sockets:
            one.setblocking(False)
            _notice_vanished(one, self._keepalive, self._keepalive_timeout)
        self._serving = kept(self._server.serve(sockets), "http")
        has_started = asyncio.ensure_future(self._server.has_started.wait())
        try:
            await asyncio.wait({has_started, self._serving}, return_when=asyncio.FIRST_COMPLETED, timeout=_START_S)
            if self._serving.done():
                await self._serving
        except OSError as error:  # found out when it listens
            raise CannotListen(f"cannot listen on {self._listen}: {error.strerror}") from error
        finally:
            has_started.cancel()
        return f"{self._scheme}://{address}"

    async def leave_lines(self) -> None:
        """Gives up the places of its connections, and ends what pages look at. Before calls end: afterwards nobody
        could."""
        await self._application.close()

    async def stop(self, within: timedelta) -> None:
        """Takes no more requests, lets those under way end, and closes all connections. Idempotent."""
        if self._serving is None:
            return
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._serving
        self._serving = None


def _notice_vanished(listening: socket.socket, keepalive: timedelta, timeout: timedelta) -> None:
    """For all connections made there: they take these over from it. Whoever was sent something has the sum of both to
    take it: a watch must not outlive its watcher. To the kernel who reads nothing is gone, too."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, keepalive // timedelta(seconds=1)),
            (socket.TCP_KEEPINTVL, _ASK_EVERY_S),  # however often, until the next one:
            (socket.TCP_USER_TIMEOUT, (keepalive + timeout) // timedelta(milliseconds=1)),
        ):
            listening.setsockopt(socket.IPPROTO_TCP, option, value)


def _bind(one: socket.socket, where: tuple[object, ...], *, reuse_port: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(where)
