"""What one connection to the HTTP port may do: send a request in good time, and read its answer.

uvicorn 0.54 bounds only how long a connection may be silent after an answer. A client that sends a byte now and then,
or does not read, would keep its connection for ever, and some hundreds of them would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from connecting, or from the last answer, to the end of the next request's head
READ_S = 30.0  # for which nothing of an answer is read
MOST_CONNECTIONS = 200

log: Any = structlog.get_logger(__name__)


class BoundedProtocol(H11Protocol):
    """One connection. Above `MOST_CONNECTIONS` it is closed at once."""

    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is there."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            log.debug("http.connection_refused", most=MOST_CONNECTIONS)
            transport.abort()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        self._stop_awaiting()
        self._stop_read_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Something has come from the client."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_awaiting()

    def on_response_complete(self) -> None:
        """An answer has been sent."""
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        self._stop_read_timer()
        self._read_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        self._stop_read_timer()
        super().resume_writing()

    def _await_request(self) -> None:
        self._stop_awaiting()
        self._request_timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_awaiting(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
