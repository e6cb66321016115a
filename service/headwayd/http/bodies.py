"""The body of a request comes in good time, or its sender is taken to have gone; and no more bytes come in at a time
than there is memory for.

What has come in whole is counted by the calls themselves (`max_running_bytes`).
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_S = 10.0  # from the end of the head to the end of the body
SHARE_BYTES = 8 * 1024  # of each connection in what comes in at a time


class Incoming:
    """So many bytes of bodies come in at a time; others wait for theirs, first come, first served."""

    def __init__(self, most: int) -> None:
        self._free = self._most = most
        self._line = asyncio.Lock()
        self._given = asyncio.Event()

    async def take(self, size: int) -> int:
        """Waits until there is room; how much was taken. More than there ever is counts as all of it."""
        size = min(size, self._most)
        async with self._line:
            while self._free < size:
                self._given.clear()
                await self._given.wait()
            self._free -= size
        return size

    def give(self, size: int) -> None:
        """Gives it back."""
        self._free += size
        self._given.set()


class Bodies:
    """The application behind it never waits longer than that for the whole body."""

    def __init__(self, app: ASGIApp, *, most_bytes: int, incoming: Incoming) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._incoming = incoming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + BODY_S
        said = Headers(scope=scope).get("content-length", "")
        size = int(said) if said.isdigit() else self._most_bytes
        taken: int | None = None
        is_all_there = False

        async def receive_in_time() -> Message:
            nonlocal is_all_there, taken
            if is_all_there:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    if taken is None:
                        taken = await self._incoming.take(size)
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            is_all_there = not message.get("more_body", False)
            if is_all_there:
                self._incoming.give(taken)
                taken = 0
            return message

        try:
            await self._app(scope, receive_in_time, send)
        finally:
            if taken:
                self._incoming.give(taken)
