"""A gRPC client that costs little: unary calls over HTTP/2 frames made by hand (RFC 9113), for loads whose every
request follows from a reply, which h2load cannot make. It knows just what it needs: no header is decoded, and a reply
without a message counts as an error.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
_INITIAL_WINDOW = 65_535
_LARGE_WINDOW = (1 << 31) - 1
_INITIAL_WINDOW_SIZE = 4  # the name of a setting
_HEAD = 9  # bytes of a frame's head
_QUIT_S = 300.0

Reply = Callable[[bytes], None]


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """One frame."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed; `name` is its place in the static table of RFC 7541, or the name in full."""
    return name + bytes((len(value),)) + value


def headers(authority: str, path: str) -> bytes:
    """The header block of a call."""
    te = b"\x00\x02te"
    content_type = b"\x0f\x10"
    return (
        b"\x83\x86"  # :method POST, :scheme http
        + literal(b"\x04", path.encode())
        + literal(b"\x01", authority.encode())
        + literal(content_type, b"application/grpc")
        + literal(te, b"trailers")
    )


class Connection(asyncio.Protocol):
    """One connection with calls of one method."""

    def __init__(self, authority: str, path: str) -> None:
        self._headers = headers(authority, path)
        self._transport: asyncio.Transport
        self._buffer = b""
        self._next_stream = 1
        self._window = _INITIAL_WINDOW
        self._held_back: list[bytes] = []
        self._calls: dict[int, Reply] = {}
        self._bodies: dict[int, bytes] = {}
        self.failed: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGE_WINDOW))
        window = frame(WINDOW, 0, 0, struct.pack(">I", _LARGE_WINDOW - _INITIAL_WINDOW))
        self._transport.write(PREFACE + settings + window)

    def call(self, message: bytes, reply: Reply) -> None:
        """Sends a request; `reply` is called with the answer, b'' if the call failed."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._calls[stream], self._bodies[stream] = reply, b""
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        data = frame(DATA, END_STREAM, stream, body)
        if self._window < len(body):  # what a connection may send is bounded by its receiver
            self._held_back.append(frame(HEADERS, END_HEADERS, stream, self._headers) + data)
            return
        self._window -= len(body)
        self._transport.write(frame(HEADERS, END_HEADERS, stream, self._headers) + data)

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer + data, 0
        while len(buffer) - at >= _HEAD:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < _HEAD + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            self._frame_received(kind, flags, stream, buffer[at + _HEAD : at + _HEAD + length])
            at += _HEAD + length
        self._buffer = buffer[at:]

    def _frame_received(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == DATA:
            self._bodies[stream] += body
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._calls.pop(stream)(self._bodies.pop(stream)[5:])
        elif kind == RST:
            self._bodies.pop(stream)
            self._calls.pop(stream)(b"")
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, body))
        elif kind == WINDOW and stream == 0:
            self._window += int.from_bytes(body, "big")
            self._send_held_back()
        elif kind == GOAWAY:
            self.failed = ConnectionError(f"the server said good-bye: {body[8:]!r}")

    def _send_held_back(self) -> None:
        while self._held_back and self._window >= len(self._held_back[0]):
            frames = self._held_back.pop(0)
            self._window -= len(frames)  # a little more than what counts
            self._transport.write(frames)

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()


@dataclass(frozen=True)
class Flood:
    """How many calls were answered with a message, how many not, and how long that took in seconds."""

    answered: int
    failed: int
    took_s: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answered / self.took_s


async def flood(
    address: str,
    path: str,
    first: Sequence[bytes],
    follow: Callable[[bytes], bytes],
    *,
    calls: int,
    connections: int,
) -> Flood:
    """Has as many calls in flight as there are `first` requests; each reply makes the next request."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    lines = []
    for _ in range(connections):
        _, line = await loop.create_connection(lambda: Connection(address, path), host, int(port))
        lines.append(line)
    answered = failed = 0
    sent = len(first)
    is_over = loop.create_future()

    def begin(line: Connection, request: bytes) -> None:
        def reply(message: bytes) -> None:
            nonlocal answered, failed, sent
            answered, failed = answered + bool(message), failed + (not message)
            if answered + failed == calls and not is_over.done():
                is_over.set_result(None)
            elif sent < calls:
                sent += 1
                line.call(follow(message) if message else request, reply)

        line.call(request, reply)

    began = loop.time()
    for n, request in enumerate(first):
        begin(lines[n % connections], request)
    try:
        async with asyncio.timeout(_QUIT_S):
            await is_over
    finally:
        for line in lines:
            line.close()
    return Flood(answered, failed, loop.time() - began)
