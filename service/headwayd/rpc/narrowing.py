"""Has connections take fewer calls at a time while a flood lasts.

A flood goes on whatever comes back. gRPC makes a call of each request before anything of ours runs, and refuses what
finds the line full, which costs as much as a tenth of a Put: ten times of what the process can do leave it little to do
it with. What is beyond the calls that a connection may have at a time (MAX_CONCURRENT_STREAMS of HTTP/2) costs next to
nothing: clients' libraries hold it back, and from others HTTP/2 takes no more. But it is said when a connection begins,
for as long as that lasts, and everyday clients, who watch and wait for much at a time, need many. So in a flood new
acceptors take the place of the old ones, whose connections are told to leave; when it is over, again.

Calls are what is kept out. Who holds streams, or waits in calls, must not be held back without a word: where that could
be, everything stays as it is.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import structlog

from headwayd.domain.kept import kept
from headwayd.rpc.backlog import LONG, LOOKING_SHARE
from headwayd.rpc.books import Books, Connection, Look

log: Any = structlog.get_logger(__name__)

# It is a flood if gRPC refused more calls between two looks than were accepted, at all looks for so long: of those who
# heed what refusals say it refuses as many for a moment only.
LASTS_S = 1.5
# Or if it refused as many as stand in so many full lines within a moment: of 400 clients, with 50 calls each, that come
# at once it refuses less than one, and they come back a second later. The larger a flood the sooner it must be kept
# out, for health checks wait behind it.
LINES, WITHIN_S = 2, 0.75
# A line that seems to be so many times as long as it can be: gRPC has refused some, and it is looked at.
OVERFULL = 1.25
# The looks may be so far apart; another is taken so soon, sooner in a large flood, but for this share of the time.
RECENT_S, AGAIN_S, SOON_S = 10.0, 0.5, 0.15
LOOKING_SHARE_IN_FLOODS = 0.1
# The least that a connection may have: a worker has calls that wait, and must still be able to settle.
LEAST = 16
# A connection that begins fewer calls than this share of what one in the flood does has no part in it, and may have
# this many times the calls and streams that it has.
QUIET_SHARE = 0.1
ROOM = 2
# A flood is over when for so long fewer calls than this share of those that are left to it wait, or began a moment ago;
# when the next one comes soon, for twice as long. After the most it is seen whether it is.
CALM_SHARE = 0.5
CALM_S = 15.0
MOST_NARROW_S = 600.0
BETWEEN_LOOKS_S = 1.0


def narrow_bound(connections: Sequence[Connection], *, calls: int, most_waiting: int, max_streams: int) -> int | None:
    """How many calls and streams a connection may have, so that those in the flood have `calls` together. None if they
    cannot be kept out so: because a connection needs as many as to have more than `most_waiting` together, or because
    it is not allowed more in any case (`max_streams`)."""
    mean = statistics.fmean(one.begun for one in connections) if connections else 0.0
    flooding = [one for one in connections if one.begun > mean * QUIET_SHARE]
    others = [one.open for one in connections if one.begun <= mean * QUIET_SHARE]
    if not flooding:
        return None
    bound = max(calls // len(flooding), LEAST, ROOM * max(others, default=0))
    return bound if bound * len(flooding) <= most_waiting and bound < max_streams else None


class Counts(Protocol):
    """What the process counts of its calls."""

    @property
    def streams_begun_count(self) -> int:
        """Streams that it ever began."""

    @property
    def fresh_count(self) -> int:
        """Calls that run, and began a moment ago."""


class Narrowing:
    """The line of calls that nobody has accepted yet, as `Backlog` asks for it; from what is found when it is looked at
    closely a flood is seen.

    `calls`: so many at a time those in the flood may have together, of `max_pending` that may wait; `max_streams`: what
    a connection may have while there is none. `renew` is that of acceptors. `floods` is called every second
    or so while a flood lasts. `clock` is monotonic, in s. Belongs to one event loop.
    """

    def __init__(
        self,
        books: Books,
        *,
        renew: Callable[[int | None], Awaitable[None]],
        counts: Counts,
        floods: Callable[[], None],
        calls: int,
        max_pending: int,
        max_streams: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._books = books
        self._renew = renew
        self._counts = counts
        self._floods = floods
        self._calls = calls
        self._max_pending = max_pending
        self._bounds = {"calls": calls, "most_waiting": max_pending // 2, "max_streams": max_streams}
        self._clock = clock
        self._streams_before = 0
        self._looked_at = float("-inf")
        self._judged: Look | None = None
        self._since: float | None = None  # all looks saw a flood
        self._from = float("-inf")  # the look before
        self._refused = 0  # so many calls were refused since then
        self._look_took_s = 0.0
        self._calm_s, self._widened_at = CALM_S, float("-inf")
        self._again: asyncio.Task[None] | None = None
        self._narrow: asyncio.Task[None] | None = None
        self.is_narrow = False  # connections that begin now may have few calls
        self._has_ended = False

    def end(self) -> None:
        """From now on all stays as it is. Idempotent."""
        self._has_ended = True
        for task in (self._again, self._narrow):
            if task is not None:
                task.cancel()

    def pending_count(self) -> int:
        """As the books tell. Where that is more than can wait gRPC has refused them, and they are looked at soon."""
        count = self._books.pending_count()
        if count > OVERFULL * self._max_pending:
            next_s = self._looked_at + self._look_took_s / LOOKING_SHARE_IN_FLOODS - self._clock()
            self._look_again_after(max(next_s, 0.0))
        return count

    def _look_again_after(self, seconds: float) -> None:
        if not (self._has_ended or _is_running(self._again) or _is_running(self._narrow)):
            self._again = kept(self._look_again(seconds), "look again for a flood")

    def correct(self, done: Callable[[float], None]) -> None:
        """The same; and what was seen is looked at."""

        def corrected(took_s: float) -> None:
            done(took_s)
            self._look_took_s = took_s
            if self._books.last_look is not self._judged:  # else several asked for it
                self._judged = self._books.last_look
                self._judge(self._judged)

        self._books.correct(corrected)

    def _judge(self, look: Look) -> None:
        """Whether this is a flood; if so connections become narrow."""
        now, streams = self._clock(), self._counts.streams_begun_count
        is_recent = now <= self._looked_at + RECENT_S
        accepted = look.begun - look.refused
        # Streams are many because many clients come at once, and each is opened once: not a flood.
        is_of_calls = streams - self._streams_before < accepted / 2
        looked_before, self._looked_at, self._streams_before = self._looked_at, now, streams
        is_flood = is_of_calls and look.refused > accepted
        is_short = self._books.pending_count() < LONG
        if self._has_ended or _is_running(self._narrow) or is_short or (is_recent and not is_flood):
            self._begin_anew()
            return
        if not is_recent:
            self._begin_anew()  # what it saw was any time ago
        elif self._since is None:
            self._since, self._from, self._refused = now, looked_before, look.refused
        else:
            self._refused += look.refused
        is_large = self._refused >= LINES * self._max_pending and now - self._from <= WITHIN_S
        if self._since is not None and (is_large or now - self._since >= LASTS_S):
            bound = narrow_bound(look.connections, **self._bounds)
            if bound is not None:
                self._narrow = kept(self._be_narrow(bound), "narrow connections")
        else:
            least_s = SOON_S if look.refused >= self._max_pending / 2 else AGAIN_S
            self._look_again_after(max(least_s, self._look_took_s / LOOKING_SHARE_IN_FLOODS))

    def _begin_anew(self) -> None:
        self._since = None
        self._books.count_anew()

    async def _look_again(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._again = None
        self.correct(lambda _took_s: None)

    async def _be_narrow(self, bound: int) -> None:
        is_soon = self._clock() - self._widened_at < 2 * self._calm_s
        self._calm_s = min(2 * self._calm_s, MOST_NARROW_S) if is_soon else CALM_S
        if await self._renewed(bound):
            self.is_narrow = True
            log.warning("flooded: clients are told to connect anew, and may have few calls at a time", streams=bound)
            await self._calm()
            while not await self._renewed(None):
                await self._calm()
            self.is_narrow = False
            log.warning("the flood is over: clients are told to connect anew, and may have as many calls as before")
        self._widened_at, self._since = self._clock(), None

    async def _renewed(self, bound: int | None) -> bool:
        try:
            await self._renew(bound)
        except OSError as error:  # it cannot listen there, or a file of its certificate has gone
            log.warning("cannot have clients connect anew", error=str(error))
            return False
        return True

    async def _calm(self) -> None:
        """Returns when the flood is over, or it is time to see whether it is."""
        began = since = self._clock()
        while self._clock() < min(since + self._calm_s, began + MOST_NARROW_S):
            used_before_s = time.thread_time()
            if self._books.pending_count() + self._counts.fresh_count > CALM_SHARE * self._calls:
                since = self._clock()
                self._floods()
                self._books.correct(lambda _took_s: None)
            took_s = time.thread_time() - used_before_s
            await asyncio.sleep(max(BETWEEN_LOOKS_S, took_s / LOOKING_SHARE))


def _is_running(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
