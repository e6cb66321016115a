"""What is known of a call: what came along, and with what it is to end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from headwayd.rpc.core.completions import Event

_NEVER_S = 1e15  # what is later is no deadline

Metadata = tuple[tuple[str, str | bytes], ...]


class Refused(NamedTuple):
    """In the place of a handler: a call ends with this before its request is read."""

    code: int
    details: str
    trailing_metadata: Metadata


class Known(grpc.aio.ServicerContext[Any, Any]):
    """The part of a handler's context that neither sends nor waits."""

    __slots__ = ("_call", "_code", "_deadline", "_details", "_metadata", "_trailing_metadata", "path")

    def __init__(self, event: Event, path: str | None) -> None:
        details = event.call_details
        self.path: str = details.method.decode(errors="replace") if path is None else path
        self._call = event.call
        self._metadata: Metadata = event.invocation_metadata
        self._deadline: float = details.deadline
        self._code: Any = None  # as the handler gave it
        self._details = ""
        self._trailing_metadata: Any = ()

    def invocation_metadata(self) -> Any:
        """What the caller sent along."""
        return self._metadata

    def time_remaining(self) -> float | None:  # type: ignore[override]
        """Until the deadline, in s; None = there is none."""
        return None if self._deadline > _NEVER_S else max(self._deadline - time.time(), 0.0)

    def peer(self) -> str:
        """The address of the other side of the connection."""
        peer: bytes = self._call.peer()
        return peer.decode()

    def peer_identities(self) -> Any:
        """As grpc.aio's."""
        return cygrpc.peer_identities(self._call)

    def peer_identity_key(self) -> str | None:
        """As grpc.aio's."""
        key: bytes | None = cygrpc.peer_identity_key(self._call)
        return None if key is None else key.decode()

    def auth_context(self) -> Mapping[str, Any]:
        """What the connection tells of the other side, such as its certificate."""
        known: Mapping[bytes, Any] = cygrpc.auth_context(self._call) or {}
        return {key.decode(): values for key, values in known.items()}

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """What goes along with the status."""
        self._trailing_metadata = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        """See above."""
        return self._trailing_metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """The code with which it ends if the handler returns."""
        self._code = code

    def code(self) -> Any:
        """As it was given, or None."""
        return self._code

    def set_details(self, details: str) -> None:
        """The same, of the text."""
        self._details = details

    def details(self) -> str:
        """See above."""
        return self._details

    def set_compression(self, compression: Any) -> NoReturn:
        """Not offered: answers are not compressed."""
        raise NotImplementedError

    def disable_next_message_compression(self) -> None:
        """They never are."""
