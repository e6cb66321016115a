"""What one connection to the HTTP port may do: send a request in good time, and read its answer. And the certificate
that was shown on it, if any.

uvicorn 0.54 bounds only how long a connection may be silent after an answer. A client that sends a byte now and then,
or does not read, would keep its connection for ever, and enough of them would keep everybody else out.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from headwayd.http.certified import CERTIFICATE
from headwayd.http.connection import Connection
from headwayd.http.refusing import refused_at_once

REQUEST_S = 10.0  # from connecting, or from the last answer, to the end of the next request's head
READ_BYTES = 64 * 1024  # of an answer that are read, at least, in the time that a reader has
SPARE = 16  # connections beyond the most, for one request each that asks whether the service is well
SPARE_S = 1.0  # in which it comes, whole
_CHECKS = (b"GET /healthz ", b"GET /readyz ")

log: Any = structlog.get_logger(__name__)


class BoundedProtocol(H11Protocol):
    """One connection. If there are more than `most`, it is told so, and closed, unless it is spare and asks how the
    service is: whoever watches over it must not take it for dead because it has much to do. Its reader has `read_s`
    for READ_BYTES."""

    most: int
    read_s: float
    _is_spare = False  # kept for whoever asks how the service is
    _is_asking = False  # and that is what its client does
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.connection = Connection()
        super().__init__(config, server_state, self.connection.joined_to(app_state), _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is there."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and (shown := tls.getpeercert(binary_form=True)) is not None:
            self.app_state = self.app_state | {CERTIFICATE: ssl.DER_cert_to_PEM_cert(shown).encode()}
        beyond = len(self.connections) - self.most
        if beyond > SPARE:
            self._refuse()
        elif beyond > 0:
            self._is_spare = True
            self._request_timer = self.loop.call_later(SPARE_S, self._refuse)
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        """Something has come from the client."""
        if self.transport.is_closing():
            return
        if self._is_spare and not self._is_asking:
            self._is_asking = data.startswith(_CHECKS)
            if not self._is_asking:
                self._refuse()
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        self._stop_awaiting()
        self._stop_read_timer()
        super().connection_lost(exc)
        self.connection.end()

    def handle_events(self) -> None:
        """Something has come from the client."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_awaiting()

    def on_response_complete(self) -> None:
        """An answer has been sent."""
        if self._is_spare:
            self.transport.close()
        self.timeout_keep_alive = max(self.config.timeout_keep_alive, self.connection.silence_s)  # type: ignore[assignment]  # seconds for a timer, whole or not
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        """It has read."""
        self._stop_read_timer()
        super().resume_writing()

    def _refuse(self) -> None:
        log.debug("http.connection_refused", most=self.most)
        self.transport.write(refused_at_once(503, "there are as many connections as the service takes", retry_s=1))
        self.transport.close()

    def _await_request(self) -> None:
        self._stop_awaiting()
        self._request_timer = self.loop.call_later(REQUEST_S + self.connection.silence_s, self.transport.abort)

    def _await_reading(self) -> None:
        self._stop_read_timer()
        unread = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(self.read_s, self._judge_reading, unread)

    def _judge_reading(self, unread: int) -> None:
        """A large answer may take a slow client longer, if only it reads on."""
        if unread - self.transport.get_write_buffer_size() < READ_BYTES:
            self.transport.abort()
        else:
            self._await_reading()

    def _stop_awaiting(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def bounded_to(most: int, read_s: float) -> type[BoundedProtocol]:
    """The protocol of a server that takes so many connections, and waits so many seconds for their readers."""
    return type("Protocol", (BoundedProtocol,), {"most": most, "read_s": read_s})
