"""Which queue, and which message, a path names.

    /queues/QUEUE    /queues/QUEUE/messages    /queues/QUEUE/messages/ID

A name is one segment, percent-encoded: names may hold any character but controls, so "/" is %2F there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import ASGIApp, Receive, Scope, Send

from headwayd.http.refusing import refusal

_QUEUES, _MESSAGES = b"queues", b"messages"
_KEY = "named"


class NotUtf8(ValueError):
    """A name that is no text."""


class Named(NamedTuple):
    """What a path names, as it stands there; None: the path has no such part."""

    queue: bytes
    has_messages: bool
    id: bytes | None

    @property
    def shape(self) -> str:
        """Which of the three paths it is."""
        return "queue" if not self.has_messages else "messages" if self.id is None else "message"

    @property
    def queue_name(self) -> str:
        """Raises NotUtf8."""
        return _text(self.queue)

    @property
    def message_id(self) -> str | None:
        """Raises NotUtf8."""
        return None if self.id is None else _text(self.id)


def named_by(raw_path: bytes) -> Named | None:
    """What this path names; None: it is no path of this door."""
    match raw_path.split(b"/"):
        case [b"", segment, queue] if segment == _QUEUES:
            return Named(queue, False, None)
        case [b"", segment, queue, messages] if (segment, messages) == (_QUEUES, _MESSAGES):
            return Named(queue, True, None)
        case [b"", segment, queue, messages, message_id] if (segment, messages) == (_QUEUES, _MESSAGES):
            return Named(queue, True, message_id)
    return None


def path_of(queue: str, message_id: str) -> str:
    """The path of a message."""
    return f"/queues/{quote(queue, safe='')}/messages/{quote(message_id, safe='')}"


class JobsRoute(BaseRoute):
    """Leads to `verbs`, for each shape of path by method, through what they are `wrapped` in. Unlike a pattern of
    Starlette's it looks at the path before that is decoded."""

    def __init__(
        self,
        verbs: Mapping[str, Mapping[str, Callable[[Request, Named], Awaitable[Response]]]],
        wrapped: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        self._verbs = verbs
        self._app = wrapped(self._answer)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is one of its paths."""
        named = named_by(scope["raw_path"]) if scope["type"] == "http" else None
        return (Match.NONE, {}) if named is None else (Match.FULL, {_KEY: named})

    def url_path_for(self, name: str, /, **path_params: object) -> object:  # type: ignore[override]
        """It has no name."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        named: Named = scope[_KEY]
        verbs = self._verbs[named.shape]
        verb = verbs.get(scope["method"])
        if verb is None:
            answer: Response = refusal(405, "there is no such verb here", headers={"allow": ", ".join(verbs)})
        else:
            answer = await verb(Request(scope, receive), named)
        await answer(scope, receive, send)


def _text(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise NotUtf8 from None
