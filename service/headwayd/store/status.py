"""The words that scripts answer with, shared with Lua: `include/keys` makes the table `T` from them."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What a script says of a call, or of one lease of it."""

    OK = "OK"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    QUEUE_DELETED = "QUEUE_DELETED"
    QUEUE_EXISTS = "QUEUE_EXISTS"
    QUEUE_CLOSED = "QUEUE_CLOSED"
    QUEUE_DRAINED = "QUEUE_DRAINED"
    CONTRADICTION = "CONTRADICTION"
    ROLE_IN_USE = "ROLE_IN_USE"
    DUPLICATE_MESSAGE = "DUPLICATE_MESSAGE"
    NEVER_FITS = "NEVER_FITS"
    TOO_FAR = "TOO_FAR"
    ACKED = "ACKED"
    ALREADY_ACKED = "ALREADY_ACKED"
    RELEASED = "RELEASED"
    DELAYED = "DELAYED"
    EXTENDED = "EXTENDED"
    DEAD = "DEAD"
    STALE = "STALE"
    GONE = "GONE"
    WITHDRAWN = "WITHDRAWN"
    LEASED = "LEASED"
    FINISHED = "FINISHED"
    TOO_LARGE = "TOO_LARGE"
    UNKNOWN = "UNKNOWN"
    POLL_TOO_SOON = "POLL_TOO_SOON"
    PLACE_LOST = "PLACE_LOST"
    GATE_SHUT = "GATE_SHUT"  # within the store only
    LAPSED = "LAPSED"  # between scripts' parts only: never in a reply
