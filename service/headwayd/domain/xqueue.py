"""The text of Gnutella's X-Queue header: written by the strictest reader's rules, read by the most careless writer's.

    position=2,length=5,limit=4,pollMin=45,pollMax=120

Both hints are whole seconds. Who is asked to wait, and for how long, is decided in `domain/hints.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headwayd.domain.hints import LONGEST_POLL_MAX_MS, PollHints
from headwayd.domain.limits import SECOND_MS

SHORTEST_POLL_S = 1
LEAST_WINDOW_S = 8  # between pollMin and pollMax: then every known client polls inside
LONGEST_POLL_S = LONGEST_POLL_MAX_MS // SECOND_MS
LARGEST_NUMBER = 2**31 - 1  # known clients read into 32 bits, some of them signed

_NOT_QUEUED = "full"
_NUMBER = re.compile(r"[0-9]{1,18}")  # what fits 64 bits; `int` alone would take signs, blanks and foreign digits
_BLANKS = " \t\r\n"
_KEYS = {key.lower(): key for key in ("position", "length", "limit", "pollMin", "pollMax")}


@dataclass(frozen=True, slots=True, kw_only=True)
class XQueue:
    """What an X-Queue header said. None: not said, or not understood. `is_full`: there is no place in this line."""

    position: int | None = None
    length: int | None = None
    limit: int | None = None
    poll_min_s: int | None = None
    poll_max_s: int | None = None
    is_full: bool = False

    @property
    def is_queued(self) -> bool:
        """Whether the header gave a place in line."""
        return bool(self.position)


def format_xqueue(*, position: int, length: int, limit: int, hints: PollHints) -> str:
    """The header's value: all five keys, in this order, no blanks.

    Hints are rounded inwards, so whoever keeps to the text keeps to the hints. Whatever the numbers, what is written
    obeys the rules: 1 ≤ pollMin, pollMin + 8 ≤ pollMax ≤ 607, nothing negative or beyond 31 bits, and no position
    beyond the length.
    """
    place = _within(position, 0, LARGEST_NUMBER)
    poll_min_s = _within(-(-hints.poll_min_ms // SECOND_MS), SHORTEST_POLL_S, LONGEST_POLL_S - LEAST_WINDOW_S)
    poll_max_s = _within(hints.poll_max_ms // SECOND_MS, poll_min_s + LEAST_WINDOW_S, LONGEST_POLL_S)
    return (
        f"position={place},length={_within(length, place, LARGEST_NUMBER)},limit={_within(limit, 0, LARGEST_NUMBER)},"
        f"pollMin={poll_min_s},pollMax={poll_max_s}"
    )


def parse_xqueue(*values: str) -> XQueue:
    """What one or several X-Queue headers say together, read as one in the order given. Never raises.

    Keys count in any order and in upper or lower case, but only whole. The first mention of a key counts, also when its
    value is no number: then that key alone is unset. Unknown keys, blanks around keys and values, and whatever is no
    pair are passed over. `position=full` says that there is no place.
    """
    said: dict[str, str] = {}
    for key, value in _pairs(values):
        said.setdefault(key, value)
    return XQueue(
        position=_number(said.get("position")),
        length=_number(said.get("length")),
        limit=_number(said.get("limit")),
        poll_min_s=_number(said.get("pollMin")),
        poll_max_s=_number(said.get("pollMax")),
        is_full=said.get("position", "").lower() == _NOT_QUEUED,
    )


def _pairs(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in values:
        for part in text.split(","):
            name, equals, value = part.partition("=")
            key = _KEYS.get(name.strip(_BLANKS).lower())
            if key and equals:
                yield key, value.strip(_BLANKS)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _within(number: int, lowest: int, highest: int) -> int:
    return max(lowest, min(number, highest))
