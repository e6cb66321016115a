"""What those who watch ask for, and what they are told.

Told  =  ToldWaiting | ToldDelayed | ToldLeased | ToldFinished     about one message
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headwayd.domain.hints import PollHints
from headwayd.domain.model import Queue
from headwayd.domain.places import Progress


class End(StrEnum):
    """How a message ended for those who watch it."""

    DONE = "DONE"
    DEAD = "DEAD"
    WITHDRAWN = "WITHDRAWN"
    EXPIRED = "EXPIRED"
    DELETED = "DELETED"  # with its queue
    TAKEN = "TAKEN"  # by a foreign client
    UNKNOWN = "UNKNOWN"  # no such message is known, or is any more


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOrder:
    """Messages to watch, each id once. `is_attended`: whoever stops watching withdraws those that still wait."""

    queue: str
    message_ids: Sequence[str]
    is_attended: bool = False


@dataclass(frozen=True, slots=True)
class Eta:
    """How long a wait is expected to be. None: there is no basis for an estimate."""

    p50_ms: int
    p90_ms: int


@dataclass(frozen=True, slots=True)
class ToldWaiting:
    """The message stands in line: its exact rank at `at_ms`."""

    id: str
    at_ms: int
    position: int
    length: int
    limit: int
    hints: PollHints
    eta: Eta | None = None
    is_moved_back: bool = False


@dataclass(frozen=True, slots=True)
class ToldDelayed:
    """The message will join the line at `due_at_ms`."""

    id: str
    at_ms: int
    due_at_ms: int
    length: int
    limit: int
    hints: PollHints


@dataclass(frozen=True, slots=True)
class ToldLeased:
    """Somebody works on the message."""

    id: str
    at_ms: int
    attempt: int
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class ToldFinished:
    """The last word on a message. `at_ms` is None if nobody knows since when it is true."""

    id: str
    at_ms: int | None
    end: End
    result: bytes = b""
    cause: str = ""


Told = ToldWaiting | ToldDelayed | ToldLeased | ToldFinished


@dataclass(frozen=True, slots=True)
class ToldQueue:
    """A queue's numbers, and the expected wait of a message put now."""

    queue: Queue
    at_ms: int
    eta: Eta | None = None
