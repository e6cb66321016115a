"""The body of a request comes in good time, or its sender is taken to have gone."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_S = 10.0  # from the end of the head to the end of the body


class Bodies:
    """The application behind it never waits longer than that for the whole body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + BODY_S
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
            return message

        await self._app(scope, receive_in_time, send)
