"""The streams that stand in one queue's consumer line, or hold what their turn brought: finds out how they stand.

Who stands where is asked of the store, for those only to whom it matters now: after a change of the line the first
`NEAR`, and those farther back whose poll_min is over; and everybody at poll_max. So a change of the line costs the same
however many stand in it. At most one look is made in `LOOK_EVERY_S`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable

import structlog

from headwayd.domain.errors import HeadwayError, InternalError, QueueDeleted, QueueNotFound
from headwayd.engine.consumers import Consumers
from headwayd.engine.standing.stance import Stance
from headwayd.engine.watching.estimates import Estimator

NEAR = 20
LOOK_EVERY_S = 0.08
_STEPS = 10  # farther back a place is told when it has changed by this part
_MOST_AT_ONCE = 500
_TROUBLE_PAUSE_S = 0.25
_BUDGET_S = 2.0
log = structlog.get_logger(__name__)

Spawn = Callable[[Awaitable[None], str], None]


class Follower:
    """Those of one queue in this process. Runs as long as there is one."""

    def __init__(
        self,
        queue: str,
        consumers: Consumers,
        estimator: Estimator,
        spawn: Spawn,
        *,
        check_s: Callable[[], float],
        on_end: Callable[[], object],
    ) -> None:
        self._queue = queue
        self._consumers = consumers
        self._store = consumers.store
        self._estimator = estimator
        self._spawn = spawn
        self._check_s = check_s
        self._on_end = on_end
        self._is_running = False
        self._loop = asyncio.get_running_loop()
        self._stances: set[Stance] = set()
        self._close: set[Stance] = set()  # the first in line, and those who hold: looked at after every change
        self._ripe: set[Stance] = set()  # poll_min is over, and nothing has changed since
        self._asked: set[Stance] = set()  # to be looked at now
        self._times: list[tuple[float, int, Stance]] = []
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._is_changed = True
        self._is_armed = False
        self._looked_at = float("-inf")
        self._checked_at = self._loop.time()

    def __len__(self) -> int:
        return len(self._stances)

    def join(self, stance: Stance) -> None:
        """Follows one more."""
        self._stances.add(stance)
        self._wake.set()
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(), f"standing:{self._queue}")

    def leave(self, stance: Stance) -> None:
        """Follows it no more."""
        for those in (self._stances, self._close, self._ripe, self._asked):
            those.discard(stance)
        if not self._stances:
            self._wake.set()

    def kick(self) -> None:
        """The line may have changed."""
        self._is_armed = False
        self._is_changed = True
        self._wake.set()

    def ask(self, stance: Stance) -> None:
        """Looks at this one now, and lets it tell."""
        self._asked.add(stance)
        self._wake.set()

    def hold(self, stance: Stance) -> None:
        """Its turn has come: looked at after every change, until that is over."""
        stance.is_holding = True
        self._close.add(stance)
        self._ripe.discard(stance)
        self._plan(stance, float("inf"))
        self.kick()  # it may be over already

    def stand(self, stance: Stance) -> None:
        """It waits for its turn."""
        stance.is_holding = False
        self._close.add(stance)

    def told(self, stance: Stance) -> None:
        """It has told its place just now."""
        is_close = stance.told_position <= NEAR
        (self._close.add if is_close else self._close.discard)(stance)
        self._ripe.discard(stance)
        wait_ms = stance.hints.poll_max_ms if is_close else stance.hints.poll_min_ms
        self._plan(stance, float("inf") if is_close and stance.is_quiet else stance.told_at + wait_ms / 1000)

    def _plan(self, stance: Stance, at: float) -> None:
        stance.look_at = at
        if at < float("inf"):
            heapq.heappush(self._times, (at, next(self._numbers), stance))
            if self._times[0][2] is stance:
                self._wake.set()

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._stances:
                self._wake.clear()
                self._ripen(self._loop.time())
                if self._is_changed or self._asked:
                    await self._look()
                    continue
                now = self._loop.time()
                # Who is told of changes only can do without: its own tries find out what hints did not tell.
                is_checked = any(not stance.is_quiet for stance in self._stances)
                check_at = self._checked_at + self._check_s() if is_checked else float("inf")
                until = min(check_at, self._times[0][0]) if self._times else check_at
                try:
                    async with asyncio.timeout(max(until - now, 0.0) if until < float("inf") else None):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                if self._loop.time() >= check_at:  # hints may be lost
                    self._checked_at = self._loop.time()
                    self._is_changed = True
        finally:  # without an await between: nobody can join a follower that does not run
            self._is_running = False
            for stance in tuple(self._stances):
                stance.fail(InternalError("nobody follows the line any more"))
            self._on_end()

    def _ripen(self, now: float) -> None:
        """Those whose time has come: at poll_max they are looked at, at poll_min when something changes."""
        while self._times and self._times[0][0] <= now:
            at, _, stance = heapq.heappop(self._times)
            if stance not in self._stances or stance.look_at != at:
                continue
            must_at = stance.told_at + stance.hints.poll_max_ms / 1000
            if at >= must_at:
                self._asked.add(stance)
            else:
                self._ripe.add(stance)
                self._plan(stance, must_at)

    async def _look(self) -> None:
        """One look at all whom it concerns."""
        pause_s = self._looked_at + LOOK_EVERY_S - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        is_changed, self._is_changed = self._is_changed, False
        if not self._is_armed:
            self._is_armed = True  # before: what is heard while it is asked for ends the interest
            await self._store.arm_standing(self._queue)  # what changes from now on is heard
        asked, self._asked = self._asked, set()
        whom = set(asked)
        if is_changed:
            whom |= self._close | self._ripe
        whom &= self._stances
        self._looked_at = self._loop.time()
        try:
            everybody = list(whom)
            for start in range(0, len(everybody), _MOST_AT_ONCE):
                await self._look_at(everybody[start : start + _MOST_AT_ONCE], asked)
        except (QueueNotFound, QueueDeleted):
            for stance in tuple(self._stances):
                stance.fail(QueueDeleted.of(self._queue))
        except HeadwayError as error:
            log.debug("standing.look_failed", queue=self._queue, reason=error.reason.name)
            self.kick()
            self._asked |= whom & self._stances
            await asyncio.sleep(_TROUBLE_PAUSE_S)

    async def _look_at(self, stances: list[Stance], asked: set[Stance]) -> None:
        asked_at = self._loop.time()
        waiters = [stance.consumer.waiter for stance in stances]
        found = await self._store.footings(self._queue, waiters, stand_again=False, budget_s=_BUDGET_S)
        self._estimator.observe(found.numbers)
        for stance, waiter, footing in zip(stances, waiters, found.footings, strict=True):
            if stance not in self._stances:
                continue
            if waiter.generation and waiter.generation != found.numbers.generation:  # another queue of the same name
                stance.fail(QueueDeleted.of(self._queue))
                continue
            stance.learn(footing, found, asked_at)
            if stance.is_holding:
                if not footing.owned:
                    stance.stir()
            elif not footing.position:
                self._consumers.restore(self._queue)  # the store has dropped it, unless its turn has come just now
            elif stance in asked or is_worth_telling(stance.told_position, footing.position):
                stance.stir()
            elif stance in self._ripe:
                self._ripe.discard(stance)
                must_at = stance.told_at + stance.hints.poll_max_ms / 1000
                self._plan(stance, min(asked_at + stance.hints.poll_min_ms / 1000, must_at))


def is_worth_telling(told: int, position: int) -> bool:
    """Whether a place has changed by so much that it is told at once; `told` 0: none was."""
    if told <= NEAR or position <= NEAR:
        return position != told
    return abs(position - told) * _STEPS >= told
