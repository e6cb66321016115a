"""Those of this process who wait on one queue: served first come, first served, without a connection or a poll each.

A line keeps trying its first waiters while they leave more to find, as many together as last time got something, and
one more; twice as many if all did. Then it arms a hint, tries once more unless that said that it would be in vain (what
happened before arming is not heard), and sleeps until the hint, or until a slow safety check makes it look
(`rounds.py`). A call by name is heard without arming: so a line that is called often arms now and then only, for what
nobody calls for, and stays for a moment when it is empty. How a waiter tries, and what it wants, is its own business: a
line only knows whether it was served.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from headwayd.domain.errors import HeadwayError, ShuttingDown, StoreUnavailable
from headwayd.engine.rounds import LOOKS_A_ROUND, FindQuiet, Rounds, none_quiet
from headwayd.engine.tasks import Spawn
from headwayd.engine.waking import Wake

_MOST_AT_ONCE = 16
_STORE_PAUSE_S = 0.1
_REST_S = 0.05  # so late may be heard what a foreign client does, where Headway's own do much
_SLACK = 64  # entries of those who have gone that are kept before it is worth sorting them out


class Waiter(Protocol):
    """Someone in a line. The smallest rank is first; equal ranks come in the order of joining."""

    @property
    def rank(self) -> int: ...

    @property
    def leaves_more(self) -> bool:
        """Of one that was served: whether there may be something for the next."""
        ...

    async def attempt(self) -> bool:
        """Tries once. True: served, or ended for good (an error among it); the line forgets the waiter. May raise
        StoreUnavailable: then it is tried again."""
        ...

    def fail(self, error: HeadwayError) -> None:
        """Ends the wait with an error."""
        ...


AttemptAll = Callable[[Sequence[Waiter]], Awaitable[Sequence[bool | BaseException]]]


async def attempt_each(waiters: Sequence[Waiter]) -> Sequence[bool | BaseException]:
    """Lets each try by itself, all at once: what came of it. One alone, as mostly, needs no task for that."""
    if len(waiters) != 1:
        return await asyncio.gather(*(waiter.attempt() for waiter in waiters), return_exceptions=True)
    try:
        return [await waiters[0].attempt()]
    except Exception as error:  # noqa: BLE001 - as gather does; who asked raises it
        return [error]


class Line:
    """The waiters of one kind on one queue. `arm` asks for the next hint, and says whether trying may find something;
    `most_at_once` first waiters may try together, which is what `attempt_all` does. When it was called it does not arm
    again for `rest_s`, and when it is empty it is served for so long. It sleeps until it is kicked, or told to look."""

    def __init__(
        self,
        arm: Callable[[], Awaitable[bool]],
        *,
        most_at_once: int,
        rest_s: float = 0.0,
        attempt_all: AttemptAll = attempt_each,
    ) -> None:
        self._arm = arm
        self._attempt_all = attempt_all
        self._most_at_once = most_at_once
        self._rest_s = rest_s
        self._waiters: dict[Waiter, None] = {}
        self._order: list[tuple[int, int, Waiter]] = []  # a heap; what no longer holds is dropped when it comes up
        self._joined = itertools.count()
        self._trying: dict[Waiter, asyncio.Future[None]] = {}
        self._is_kicked = False  # trying may find something
        self._is_called = False  # by name, since it armed
        self._is_behind = False  # something was heard while nobody waited, so what a try found before may be old
        self._is_over = False
        self._news = asyncio.Event()
        self.trouble: StoreUnavailable | None = None  # of the last try, if the store failed it
        self._is_to_look = False  # though nothing was heard
        self.quiet_since: float | None = None  # see rounds.Sleeper
        self.checks = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter, *, has_tried: bool = False) -> None:
        """Stands in the line, where its rank says. Who is not the first is not tried: what may change for it will be
        heard. Nor is who comes alone and `has_tried` just now in vain: what changed since then arming tells."""
        self._waiters[waiter] = None
        self._enter(waiter)
        is_alone = len(self._waiters) == 1
        if self._first(1) == [waiter] and not (has_tried and is_alone):
            self.kick()
        elif is_alone:
            self._news.set()

    def _enter(self, waiter: Waiter) -> None:
        heapq.heappush(self._order, (waiter.rank, next(self._joined), waiter))
        if len(self._order) > 2 * len(self._waiters) + _SLACK:
            self._order = [entry for entry in self._order if entry[2] in self._waiters and entry[2].rank == entry[0]]
            heapq.heapify(self._order)

    def _first(self, count: int) -> list[Waiter]:
        """The first so many, in order. O(log n) each."""
        found: list[tuple[int, int, Waiter]] = []
        while self._order and len(found) < count:
            entry = heapq.heappop(self._order)
            rank, _, waiter = entry
            if waiter in self._waiters and waiter.rank == rank and all(waiter is not known for _, _, known in found):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._order, entry)
        return [waiter for _, _, waiter in found]

    def __iter__(self) -> Iterator[Waiter]:
        return iter(tuple(self._waiters))

    def is_trying(self, waiter: Waiter) -> bool:
        """Whether it is just trying: then what the store says of it may be of before or after."""
        return waiter in self._trying

    async def leave(self, waiter: Waiter) -> None:
        """Gives up the place. If the waiter is just trying, returns when it knows how that went (bounded by the store's
        timeouts)."""
        self.forget(waiter)
        trial = self._trying.get(waiter)
        if trial is not None:
            await asyncio.shield(trial)

    def forget(self, waiter: Waiter) -> None:
        """Gives up the place at once; if the waiter is just trying, it must cope with the outcome itself."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            if not self._waiters:
                self._news.set()  # `serve` sees it at once, not at its next safety check

    def kick(self, *, is_call: bool = False) -> None:
        """Something may have changed. `is_call`: somebody here was called by name, which is heard without arming."""
        if self._waiters:
            self._is_kicked = True
            self._is_called |= is_call
            self._news.set()
        else:
            self._is_behind = True

    def look(self) -> None:
        """Its first waiters try once more: a hint may have been lost."""
        self._is_to_look = True
        self._news.set()

    def fail_all(self, error: HeadwayError) -> None:
        """Ends everybody's wait, and the serving."""
        for waiter in list(self._waiters):
            waiter.fail(error)
        self._waiters.clear()
        self._is_over = True
        self._news.set()

    async def serve(self) -> None:
        """Runs until nobody has waited for `rest_s`."""
        loop = asyncio.get_running_loop()
        width = 1
        is_armed = may_find = False
        rests_until = 0.0
        while self._waiters or await self._is_joined(may_find):
            if self._is_behind:  # then it goes on as if it had just begun
                self._is_behind = self._is_called = is_armed = may_find = False
            if self._is_kicked:
                self._is_kicked = False
                is_armed, may_find = False, True  # a hint comes once
            if may_find:
                self.checks = 0
                try:
                    served, may_find = await self._try_first(width)
                except StoreUnavailable as error:
                    self.trouble = error
                    await asyncio.sleep(_STORE_PAUSE_S)
                    is_armed = False
                    continue
                self.trouble = None
                width = min(2 * width if may_find else served + 1, self._most_at_once)
            elif not is_armed and not (self._is_called and loop.time() < rests_until):
                self._is_called = False
                may_find = await self._arm()
                is_armed, rests_until = True, loop.time() + self._rest_s
            elif is_armed:
                self.quiet_since = loop.time()
                await self._hears(None)
                self.quiet_since = None
                if self._is_to_look:
                    self._is_to_look = False
                    await self._arm()  # before the look: then one look will do
                    may_find = True
            else:
                await self._hears(rests_until - loop.time())

    async def _is_joined(self, may_find: bool) -> bool:
        """Whether somebody comes within `rest_s`, now that nobody waits. Whoever comes may have tried before what was
        heard last."""
        self._is_behind |= may_find or self._is_kicked
        self._is_kicked = False
        if self._rest_s and not self._is_over:
            await self._hears(self._rest_s)
        return bool(self._waiters)

    async def _hears(self, within_s: float | None) -> None:
        """Waits for news, at most so long."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._news.wait()

    async def _try_first(self, width: int) -> tuple[int, bool]:
        """Lets the first waiters try, in order. How many were served, and whether the next may find something, too: all
        have got on, served or to another rank, and none of those who were served was left nothing."""
        first = self._first(width)
        ranks = [waiter.rank for waiter in first]
        loop = asyncio.get_running_loop()
        for waiter in first:
            self._trying[waiter] = loop.create_future()
        try:
            outcomes = await self._attempt_all(first)
        finally:
            for waiter in first:
                self._trying.pop(waiter).set_result(None)
        moved, leave_more = 0, True
        for waiter, rank, outcome in zip(first, ranks, outcomes, strict=True):
            if outcome is True:
                self._waiters.pop(waiter, None)
                leave_more = leave_more and waiter.leaves_more
            elif waiter.rank != rank:
                moved += 1
                if waiter in self._waiters:
                    self._enter(waiter)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        served = outcomes.count(True)
        return served, leave_more and served + moved == len(first)


class Lines:
    """All lines of one kind in this process, by queue; a line lives as long as somebody stands in it, and a moment
    longer. `find_quiet` tells for which of some queues a look would be in vain, of `checks_a_round` at once."""

    def __init__(
        self,
        arm: Callable[[str], Awaitable[bool]],
        spawn: Spawn,
        *,
        kind: str,
        most_at_once: int = _MOST_AT_ONCE,
        attempt_all: AttemptAll = attempt_each,
        on_end: Callable[[str], None] = lambda _queue: None,
        find_quiet: FindQuiet = none_quiet,
        checks_a_round: int = LOOKS_A_ROUND,
    ) -> None:
        self._arm = arm
        self._spawn = spawn
        self._kind = kind
        self._most_at_once = most_at_once
        self._attempt_all = attempt_all
        self._on_end = on_end
        self._lines: dict[str, Line] = {}
        self._rounds = Rounds(self._lines, find_quiet, spawn, kind=kind, most=checks_a_round)
        self._over: HeadwayError | None = None

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def waiters_on(self, queue: str) -> Sequence[Waiter]:
        """Those who wait on this queue."""
        line = self._lines.get(queue)
        return tuple(line) if line else ()

    def idle_on(self, queue: str) -> Sequence[Waiter]:
        """Those of them who are not just trying."""
        line = self._lines.get(queue)
        return [waiter for waiter in line if not line.is_trying(waiter)] if line else ()

    @property
    def queues(self) -> Sequence[str]:
        """Those on which somebody waits."""
        return tuple(queue for queue, line in self._lines.items() if line)

    def join(self, queue: str, waiter: Waiter, *, has_tried: bool = False) -> Line:
        """Stands in the queue's line. See Line."""
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = Line(
                lambda: self._arm(queue),
                most_at_once=self._most_at_once,
                rest_s=_REST_S,
                attempt_all=self._attempt_all,
            )
            self._spawn(self._serve(queue, line), f"{self._kind}:{queue}")
            self._rounds.plan()
        line.join(waiter, has_tried=has_tried)
        if self._over is not None:
            line.fail_all(self._over)
        return line

    async def _serve(self, queue: str, line: Line) -> None:
        try:
            await line.serve()
        finally:  # without an await between: nobody can join a line that is not served
            self._lines.pop(queue, None)
            self._on_end(queue)
            line.fail_all(ShuttingDown("this process stopped serving the line"))

    def kick(self, queue: str, *, is_call: bool = False) -> None:
        """Something may have changed on this queue. `is_call`: see Line."""
        if queue in self._lines:
            self._lines[queue].kick(is_call=is_call)

    def wakes(self) -> Iterator[Wake]:
        """By which each line there is now is kicked: something may have changed on any queue."""
        return (line.kick for line in tuple(self._lines.values()))

    def fail_all(self, error: HeadwayError) -> None:
        """Ends everybody's wait, also that of whoever comes later."""
        self._over = error
        for line in list(self._lines.values()):
            line.fail_all(error)
