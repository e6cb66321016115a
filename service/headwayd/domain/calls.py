"""A call of the service as those see it who take it another way than gRPC: bytes in, bytes out, or why not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum

_CERTIFICATE: ContextVar[bytes] = ContextVar("certificate", default=b"")


@contextlib.contextmanager
def over_connection_of(certificate: bytes) -> Iterator[None]:
    """Within this block calls come from who has shown this certificate, in PEM; empty: from who has shown none."""
    before = _CERTIFICATE.set(certificate)
    try:
        yield
    finally:
        _CERTIFICATE.reset(before)


def certificate_shown() -> bytes:
    """By whom the call of now comes from; empty if there is none."""
    return _CERTIFICATE.get()


class Code(IntEnum):
    """How a call failed, as gRPC numbers it and Connect names it."""

    CANCELED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Why:
    """What the details of a status say: the reason by name, what belongs to it, and when to ask again, if that makes
    sense."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_ms: int | None = None


class CallFailed(Exception):
    """A call that ended with a status: its code, a text, details as type URLs and bytes. `why` is what they say."""

    def __init__(
        self, code: int, text: str, details: Sequence[tuple[str, bytes]] = (), *, why: Why | None = None
    ) -> None:
        super().__init__(text)
        self.code = Code(code)
        self.text = text
        self.details = tuple(details)
        self.why = why or Why()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller sent beside the request: metadata, where from, and for how long it waits (None: as long as it
    takes)."""

    metadata: Sequence[tuple[str, str]] = ()
    peer: str = ""
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A call that can be made. `path` is its path in gRPC; `is_stream`: it streams its replies."""

    path: str
    service: str
    name: str
    is_stream: bool
