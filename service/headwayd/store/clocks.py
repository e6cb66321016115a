"""What is known of a server's clock: how far it is before this process's, and whether it has gone forward.

When something is due is told in the server's time and waited for in this process's. If the server's clock is put
forward, or this process's stands still, as while a machine is suspended, it is due sooner than was told.
"""

from __future__ import annotations

import math

_FORWARD_MS = 250.0  # by which a clock may go forward unsaid: as late as what is due may be


class ServerClock:
    """An answer tells the time of some moment between question and answer, so the clock is known between two bounds:
    that it has gone forward is said where it is certain, however slow the answers are."""

    def __init__(self) -> None:
        self.ahead_ms = -math.inf  # before this process's clock, at least
        self._most_ms = math.inf  # and at most
        self._was_at_most_ms = math.inf  # at some time since it was last said that it had gone forward

    def hear(self, told_us: int, *, asked_at: float, heard_at: float) -> None:
        """The server told so many microseconds since 1970; asked and heard when, in seconds of this process's clock."""
        self.ahead_ms = told_us / 1000 - heard_at * 1000
        self._most_ms = told_us / 1000 - asked_at * 1000
        self._was_at_most_ms = min(self._was_at_most_ms, self._most_ms)

    def has_gone_forward(self) -> bool:
        """Whether it has, since this was last true or was first heard."""
        if self.ahead_ms - self._was_at_most_ms <= _FORWARD_MS:
            return False
        self._was_at_most_ms = self._most_ms
        return True
