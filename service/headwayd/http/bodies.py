"""The body of a request comes in good time, or its sender is taken to have gone; and no more bytes come in at a time
than there is memory for.

What has come in whole is counted by the calls themselves (`max_running_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwayd.http.refusing import refusal

BODY_S = 10.0  # from the end of the head to the end of the body
SHARE_BYTES = 8 * 1024  # of each connection in what comes in at a time


class Incoming:
    """Room for what comes in at a time of large bodies, `shared` bytes, and besides as much as one of them may have.

    Room is taken by the bytes that come, not by what a head says of them: those may never come. So bodies that each
    have a part may be in each other's way. Then the one that has come for longest is lent the room besides, in which
    all of its rest fits: when it has ended the next one's turn has come. Nobody waits for a body that does not come,
    unless it has sent that many bytes.
    """

    def __init__(self, shared: int) -> None:
        self._free = shared
        self._lent_to: Body | None = None
        self._count = 0
        self._waiting: list[tuple[int, int, Body, asyncio.Future[None]]] = []  # a heap; the second tells apart

    def body(self) -> Body:
        """Another one begins to come."""
        self._count += 1
        return Body(self, self._count)

    async def take(self, body: Body, size: int) -> None:
        """Waits until there is room for so many bytes more of it, behind all that came before it and wait, too."""
        if body is self._lent_to:
            return
        if not self._waiting and size <= self._free:
            self._hold(body, size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (body.number, size, body, turn))
        self._serve()
        try:
            await turn
        finally:
            if turn.cancelled():
                self._serve()  # whoever stood behind may fit

    def give_back(self, body: Body) -> None:
        """All that it has. Idempotent."""
        self._free += body.held
        body.held = 0
        if self._lent_to is body:
            self._lent_to = None
        self._serve()

    def _hold(self, body: Body, size: int) -> None:
        self._free -= size
        body.held += size

    def _serve(self) -> None:
        while self._waiting:
            _, size, body, turn = self._waiting[0]
            if not turn.done():
                if size <= self._free:
                    self._hold(body, size)
                elif self._lent_to is None:
                    self._lent_to = body
                else:
                    return
                turn.set_result(None)
            heappop(self._waiting)


class Body:
    """What one body has of the room. Small ones, of SHARE_BYTES and less, need none."""

    __slots__ = ("_came", "_incoming", "held", "number")

    def __init__(self, incoming: Incoming, number: int) -> None:
        self._incoming = incoming
        self._came = 0
        self.number = number
        self.held = 0

    async def come(self, size: int, most: int) -> None:
        """Waits until there is room for so many bytes more, which have come. Beyond `most` in all it needs none: then
        it is refused, and nobody keeps them."""
        before, self._came = self._came, self._came + size
        more = max(min(self._came, most) - SHARE_BYTES, 0) - max(min(before, most) - SHARE_BYTES, 0)
        if more:
            await self._incoming.take(self, more)

    def ended(self) -> None:
        """It has come, or will not. Idempotent."""
        self._incoming.give_back(self)


class Bodies:
    """The application behind it never waits longer than that for a whole body, and is not asked about one of more than
    `most_bytes`, if its head says so: `too_large` answers, told both."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        incoming: Incoming,
        too_large: Callable[[int, int], Response] = lambda _size, most: refusal(
            413, f"the body must have at most {most} bytes"
        ),
    ) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._incoming = incoming
        self._too_large = too_large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + BODY_S
        if (announced := _announced(Headers(scope=scope))) > self._most_bytes:
            await _read_away(receive, until)
            await self._too_large(announced, self._most_bytes)(scope, receive, send)
            return
        body = self._incoming.body()
        is_all_there = is_refused = False

        async def receive_in_time() -> Message:
            nonlocal is_all_there, is_refused
            if is_all_there:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            try:
                async with asyncio.timeout_at(until):
                    await body.come(len(message.get("body", b"")), self._most_bytes)
            except TimeoutError:
                is_refused = True
                return {"type": "http.disconnect"}
            is_all_there = not message.get("more_body", False)
            if is_all_there:
                body.ended()
            return message

        async def send_unless_refused(message: Message) -> None:
            if not is_refused:  # else the application takes it for gone
                await send(message)

        try:
            await self._app(scope, receive_in_time, send_unless_refused)
        finally:
            body.ended()
        if is_refused:
            why = "too many large bodies come in at a time"
            await refusal(503, why, headers={"retry-after": "1"})(scope, receive, send)


def _announced(headers: Headers) -> int:
    """How much will come, as the head says; 0 if it does not. With `transfer-encoding` a length says nothing."""
    said = headers.get("content-length", "")
    return int(said) if said.isdigit() and "transfer-encoding" not in headers else 0


async def _read_away(receive: Receive, until: float) -> None:
    """Who is answered before all of its body has come may never read the answer."""
    try:
        async with asyncio.timeout_at(until):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
