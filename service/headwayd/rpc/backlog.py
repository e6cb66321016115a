"""Whether more calls come than this process can begin, and which of them must be refused then.

Calls stand in a line of gRPC's own until Python accepts them, first come, first served. When more come than are done,
that line grows until whoever is served has waited longer than any caller does. So while it stays long some calls are
refused, as soon as they are accepted, and told when to come again: more and more of them until the line gets shorter,
but for as many as keep the process busy. As with CoDel (RFC 8289) a long line means nothing as such, for many calls may
come at once; one that does not get short does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

# Calls in gRPC's line: as many as are done in a fifth of a second. With 4,000 callers are told to stay away so late
# that gRPC has refused many more of them itself, and told them nothing.
LONG = 2_000
# What a look found counts until another one has been due for so long: nobody took it because there was no need.
STALE_S = 1.0
# Who is refused one of many calls makes none for a while, and to refuse a call takes half as long as to do it. So few
# are refused at first, twice as many with each look that finds the line no shorter, half as many with each that does.
# Of 20,000 calls by 400 callers 640 are enough to send four of five away; if all were sent away the process would have
# nothing to do until they come again. (Random early detection, Floyd and Jacobson 1993, does so with packets.)
FEWEST_PER_S, MOST_PER_S = 640.0, 2_560.0
# However many that would be, half of a long line is left.
GOOD = LONG // 2
# So long must the line be long at every look before anything is refused.
PATIENCE_S = 0.5
# Having been behind, the process is behind again at the first look at a long line, for so long.
WATCHFUL_S = 10.0
# A look costs about 0.4 ms, and 35 µs more for each connection (gRPC 1.85: 0.2 s with 5,000). So it is taken only when
# a call comes that might have to be refused, and looking takes no more than this share of the time; while the line is
# long, than the second one, or it would take a process with hundreds of connections too long to see what that means.
BETWEEN_LOOKS_S = 0.1
LOOKING_SHARE, LOOKING_SHARE_WHILE_LONG = 0.01, 0.1
# Before anything is refused, and now and then while it is, a closer look makes sure: 0.2 ms for each connection.
BETWEEN_CLOSE_LOOKS_S = 0.5
CLOSE_LOOKING_SHARE = 0.05
# While behind, so many fresh calls may run: enough to keep the process and a pipeline to the store busy. Where Python
# is what is short there are hardly more at a time, however long the line is: with 64 allowed nearly nobody was refused
# until the line was full, and with 12 the process had too little to do (docs/measurements.md).
BUSY = 20
# Until then a call is fresh; one that runs for longer waits for something else than for this process.
FRESH_S = 0.5


class Line(Protocol):
    """What tells how long the line is."""

    def pending_count(self) -> int:
        """How many calls nobody has accepted yet; perhaps too many, but for `correct`."""

    def correct(self, done: Callable[[float], None]) -> None:
        """Begins to look more closely, and calls `done` behind that with the seconds of the processor that it took."""


class Backlog:
    """Looks at the line of calls that nobody has accepted yet, whenever one has been. `found_behind` is called by each
    look that finds the process behind. `clock` is monotonic, in s; `used` tells how many seconds of the processor this
    thread has had: no look is dear because others had it."""

    def __init__(
        self,
        line: Line,
        *,
        found_behind: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._line = line
        self._found_behind = found_behind
        self._clock = clock
        self._used = used
        self._is_looking_closely, self._look_closely_at = False, float("-inf")
        self._look_at = float("-inf")
        self._long_since: float | None = None
        self._watchful_until = 0.0
        self._fresh: dict[int, int] = {}  # calls that run, by the span of FRESH_S in which they began
        self._refusals_per_s = 0.0
        self._pending_before = 0
        self.left_to_refuse = 0.0  # so many calls may still be refused until the next look
        self.is_behind = False

    def enter(self) -> int:
        """A call begins to run. Returns what `leave` wants."""
        now = self._clock()
        began = int(now / FRESH_S)
        if began not in self._fresh:
            self._fresh = {then: count for then, count in self._fresh.items() if then >= began - 1}
            self._fresh[began] = 0
        self._fresh[began] += 1
        if now >= self._look_at and sum(self._fresh.values()) > BUSY:
            used_before_s = self._used()
            self._look(now)
            if self.is_behind:
                self._found_behind()
            share = LOOKING_SHARE if self._long_since is None else LOOKING_SHARE_WHILE_LONG
            between_s = max(BETWEEN_LOOKS_S, (self._used() - used_before_s) / share)
            self._look_at = now + between_s
            self.left_to_refuse = min(self.left_to_refuse, self._refusals_per_s * between_s)
        return began

    def leave(self, began: int) -> None:
        """A call has ended."""
        if began in self._fresh:
            self._fresh[began] -= 1

    def refused(self) -> None:
        """One call was refused."""
        self.left_to_refuse -= 1

    @property
    def fresh_count(self) -> int:
        """How many calls run that began a moment ago. While few run none is counted."""
        now = int(self._clock() / FRESH_S)
        return sum(count for then, count in self._fresh.items() if then >= now - 1)

    @property
    def must_refuse(self) -> bool:
        """Whether the call that entered last must not go on."""
        return self.is_behind and self.left_to_refuse >= 1 and sum(self._fresh.values()) > BUSY

    @property
    def must_refuse_next(self) -> bool:
        """Whether a call that has not entered yet must not."""
        is_busy = self.is_behind and self.left_to_refuse >= 1 and sum(self._fresh.values()) >= BUSY
        return is_busy and not self._is_stale(self._clock())

    def _is_stale(self, now: float) -> bool:
        return now > self._look_at + STALE_S

    def _look(self, now: float) -> None:
        pending = self._line.pending_count()
        self._judge(pending)
        if pending < LONG:
            self.is_behind, self._long_since = False, None
            return
        if self._is_stale(now) or self._long_since is None:
            self.is_behind, self._long_since = False, now
        is_watchful = now < self._watchful_until
        if self._is_looking_closely or not (is_watchful or self.is_behind or now - self._long_since >= PATIENCE_S):
            return
        if now >= self._look_closely_at:
            self._is_looking_closely = True
            self._line.correct(self._has_looked_closely)
        elif is_watchful:
            self.is_behind = True

    def _judge(self, pending: int) -> None:
        """How many may be refused with a line as long as this."""
        if not self.is_behind or pending < LONG:
            self._refusals_per_s = 0.0
        elif pending >= self._pending_before:
            self._refusals_per_s = min(max(2 * self._refusals_per_s, FEWEST_PER_S), MOST_PER_S)
        else:
            self._refusals_per_s /= 2
        self._pending_before = pending
        self.left_to_refuse = float(max(pending - GOOD, 0))

    def _has_looked_closely(self, took_s: float) -> None:
        now = self._clock()
        self._is_looking_closely = False
        self._look_closely_at = now + max(BETWEEN_CLOSE_LOOKS_S, took_s / CLOSE_LOOKING_SHARE)
        pending = self._line.pending_count()
        self.is_behind = pending >= LONG
        self._pending_before = pending  # what was counted before may have been too many
        if self.is_behind:
            self._watchful_until = now + WATCHFUL_S
        else:
            self._long_since = None
            self.left_to_refuse = 0.0
