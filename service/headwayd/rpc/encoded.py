"""Replies that are bytes already. Most of a large one was put together as such; to read them into a message, only to
have that written again, would cost as much once more."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message as ProtoMessage


class Encoded:
    """A reply of this kind, in bytes. `is_followed`: the next of its stream is right behind it."""

    __slots__ = ("_kind", "_raw", "is_followed")

    def __init__(self, kind: type[ProtoMessage], raw: bytes) -> None:
        self._kind = kind
        self._raw = raw
        self.is_followed = False

    def SerializeToString(self) -> bytes:  # noqa: N802 - as a message has it
        """As it goes out."""
        return self._raw

    def message(self) -> ProtoMessage:
        """For who wants to look into it."""
        return self._kind.FromString(self._raw)


Reply = ProtoMessage | Encoded


def to_bytes(reply: Reply) -> bytes:
    """As a reply goes out."""
    return reply.SerializeToString()


def followed(reply: Reply) -> Encoded:
    """The reply, which the next of its stream is right behind: they may leave together. Whoever yields it must yield
    that one without waiting for anything."""
    encoded = reply if isinstance(reply, Encoded) else Encoded(type(reply), reply.SerializeToString())
    encoded.is_followed = True
    return encoded


def is_followed(reply: object) -> bool:
    """Whether it is one of those."""
    return type(reply) is Encoded and reply.is_followed


def as_message(reply: Reply) -> ProtoMessage:
    """A reply to look into."""
    return reply.message() if isinstance(reply, Encoded) else reply


def with_messages(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What serves a call, so that each of its replies is a message."""
    if inspect.iscoroutinefunction(behaviour):

        async def unary(request: Any, context: Any) -> ProtoMessage:
            return as_message(await behaviour(request, context))

        return unary

    async def stream(request: Any, context: Any) -> AsyncGenerator[ProtoMessage, None]:
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                yield as_message(reply)

    return stream
