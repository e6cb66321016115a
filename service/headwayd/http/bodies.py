"""The body of a request comes in good time, or its sender is taken to have gone; and no more bytes come in at a time
than there is memory for.

What has come in whole is counted by the calls themselves (`max_running_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwayd.http.refusing import refusal

BODY_S = 10.0  # from the end of the head to the end of the body
SHARE_BYTES = 8 * 1024  # of each connection in what comes in at a time


class Incoming:
    """So many bytes of large bodies come in at a time; others wait for theirs, first come, first served. Small ones, of
    SHARE_BYTES and less, never wait: what was said by one head, and may never come, keeps nobody from a call."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._line = asyncio.Lock()
        self._given = asyncio.Event()

    async def take(self, size: int) -> None:
        """Waits until there is room for so many bytes, which there must be if nothing else comes in."""
        if size > SHARE_BYTES:
            async with self._line:
                while self._free < size:
                    self._given.clear()
                    await self._given.wait()
                self._free -= size

    def give(self, size: int) -> None:
        """Gives it back."""
        if size > SHARE_BYTES:
            self._free += size
            self._given.set()


class Bodies:
    """The application behind it never waits longer than that for a whole body, and is not asked about one of more than
    `most_bytes`, if its head says so: `too_large` answers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        incoming: Incoming,
        too_large: Callable[[int], Response] = lambda most: refusal(413, f"the body must have at most {most} bytes"),
    ) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._incoming = incoming
        self._too_large = too_large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + BODY_S
        size = self._size(Headers(scope=scope))
        if size > self._most_bytes:
            await _read_away(receive, until)
            await self._too_large(self._most_bytes)(scope, receive, send)
            return
        try:
            async with asyncio.timeout_at(until):
                await self._incoming.take(size)
        except TimeoutError:
            why = "too many large bodies come in at a time"
            await refusal(503, why, headers={"retry-after": "1"})(scope, receive, send)
            return
        taken = size

        def give_back() -> None:
            nonlocal taken
            self._incoming.give(taken)
            taken = 0

        is_all_there = False

        async def receive_in_time() -> Message:
            nonlocal is_all_there
            if is_all_there:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            is_all_there = not message.get("more_body", False)
            if is_all_there:
                give_back()
            return message

        try:
            await self._app(scope, receive_in_time, send)
        finally:
            give_back()

    def _size(self, headers: Headers) -> int:
        """How much may come, as the head says; one that says nothing of a body has none."""
        said = headers.get("content-length", "")
        if said.isdigit():
            return int(said)
        return self._most_bytes if "transfer-encoding" in headers else 0


async def _read_away(receive: Receive, until: float) -> None:
    """Who is answered before all of its body has come may never read the answer."""
    try:
        async with asyncio.timeout_at(until):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
