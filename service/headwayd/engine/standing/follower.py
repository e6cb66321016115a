"""The streams that stand in one queue's consumer line, or hold what their turn brought: finds out how they stand.

Who stands where is asked of the store, for those only to whom it matters now: after a change of the line the first
`NEAR`, and those farther back whose poll_min is over; when that is over, those who stood there during a change; and at
poll_max everybody, but no one who is told of changes only and for whom there was none. Each look tells the number of
the last of the first `NEAR`: by that it is known here who has come among them. So a change of the line costs the same,
however many stand in it. At most one look is made in `LOOK_EVERY_S`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog

from headwayd.domain.errors import HeadwayError, InternalError, QueueDeleted, QueueNotFound
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.places import NEAR
from headwayd.engine.consumers import Consumers
from headwayd.engine.standing.stance import Stance
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.alarms import Alarms
from headwayd.engine.watching.estimates import Estimator
from headwayd.engine.watching.trouble import TROUBLE_PAUSE_S

LOOK_EVERY_S = 0.08
_MOST_AT_ONCE = 500
_IN_A_TURN = 20  # are stirred in one turn of the event loop: then others have theirs
_LATER = 8  # who is far back is looked at later than at poll_min by such a part of it, at most
log = structlog.get_logger(__name__)


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
        self._far: Alarms[Stance] = Alarms()  # all others who wait, by their numbers in line
        self._ripe: set[Stance] = set()  # poll_min is over: to be looked at after the next change
        self._asked: set[Stance] = set()  # to be looked at now
        self._times: Alarms[Stance] = Alarms()  # when each is to be looked at, whatever happens
        self._wake = asyncio.Event()
        self._is_changed = True
        self._changed_at = self._loop.time()  # when that was heard last
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
        for alarms in (self._far, self._times):
            alarms.drop(stance)
        stance.look_at = float("inf")
        if not self._stances:
            self._wake.set()

    def kick(self) -> None:
        """The line may have changed."""
        self._is_armed = False
        self._is_changed = True
        self._changed_at = self._loop.time()
        self._wake.set()

    def ask(self, stance: Stance) -> None:
        """Looks at this one now."""
        self._asked.add(stance)
        self._wake.set()

    def hold(self, stance: Stance) -> None:
        """Its turn has come: looked at after every change, until that is over."""
        stance.is_holding = True
        self._look_always_at(stance)
        self._ripe.discard(stance)
        self._plan(stance, float("inf"))
        self.kick()  # it may be over already

    def stand(self, stance: Stance) -> None:
        """It waits for its turn. Whatever its place is, it is told."""
        stance.is_holding = False
        stance.told_at = float("-inf")
        self._look_always_at(stance)

    def told(self, stance: Stance) -> None:
        """It has told its place just now."""
        self._ripe.discard(stance)
        if stance.told_position <= NEAR:
            self._look_always_at(stance)
            self._plan(stance, float("inf") if stance.is_quiet else stance.must_tell_at)
        else:
            self._look_seldom_at(stance)
            self._plan_far(stance, stance.told_at)

    def _look_always_at(self, stance: Stance) -> None:
        self._close.add(stance)
        self._far.drop(stance)

    def _look_seldom_at(self, stance: Stance) -> None:
        self._close.discard(stance)
        self._far.set(stance, stance.number)

    def _plan_far(self, stance: Stance, since: float) -> None:
        """It is looked at when poll_min since then is over, or a little later: those who stand near each other are
        looked at together. At poll_max at the latest, unless that is over."""
        poll_min_s = stance.hints.poll_min_ms / 1_000
        grid_s = 2.0 ** math.floor(math.log2(poll_min_s / _LATER))
        at, must_at = math.ceil((since + poll_min_s) / grid_s) * grid_s, stance.must_tell_at
        self._plan(stance, min(at, must_at) if must_at > since else at)

    def _plan(self, stance: Stance, at: float) -> None:
        stance.look_at = at
        if at == float("inf"):
            self._times.drop(stance)
            return
        first = self._times.first()
        self._times.set(stance, at)
        if first is None or at < first:
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
                first = self._times.first()
                until = check_at if first is None else min(check_at, first)
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
        """Those whose time has come are looked at when there may be something to tell them, now or as soon as something
        changes."""
        for stance in self._times.pop(now):
            if stance.known_at < self._changed_at or stance.is_due(now):
                self._asked.add(stance)
                continue
            self._ripe.add(stance)
            if stance.must_tell_at > now:
                self._plan(stance, stance.must_tell_at)

    async def _look(self) -> None:
        """One look at all whom it concerns."""
        pause_s = self._looked_at + LOOK_EVERY_S - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        is_changed, self._is_changed = self._is_changed, False
        if not self._is_armed:
            self._is_armed = True  # before: what is heard while it is asked for ends the interest
            await self._store.arm_standing(self._queue)  # what changes from now on is heard
        whom, self._asked = self._asked, set()
        if is_changed:
            whom |= self._close | self._ripe
        whom &= self._stances
        self._looked_at = self._loop.time()
        try:
            everybody = list(whom)
            for start in range(0, len(everybody), _MOST_AT_ONCE):
                await self._look_at(everybody[start : start + _MOST_AT_ONCE])
            if not everybody and len(self._far):
                await self._look_at([])  # one of them may have come among the first
        except (QueueNotFound, QueueDeleted):
            for number, stance in enumerate(tuple(self._stances), 1):
                stance.fail(QueueDeleted.of(self._queue))
                if number % _IN_A_TURN == 0:
                    await asyncio.sleep(0)
        except HeadwayError as error:
            log.debug("standing.look_failed", queue=self._queue, reason=error.reason.name)
            self.kick()
            self._asked |= whom & self._stances
            await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _look_at(self, stances: list[Stance]) -> None:
        asked_at = self._loop.time()
        waiters = [stance.consumer.waiter for stance in stances]
        found = await self._store.footings(self._queue, waiters, stand_again=False, budget_s=STORE_BUDGET_S)
        self._estimator.observe(found.numbers)
        come = self._far.pop(float("inf") if found.near_number is None else found.near_number)
        self._close.update(come)
        self._asked.update(set(come).difference(stances))
        for number, (stance, waiter, footing) in enumerate(zip(stances, waiters, found.footings, strict=True)):
            if number and number % _IN_A_TURN == 0:
                await asyncio.sleep(0)
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
                self._ripe.add(stance)  # it is found again after that
            elif stance.is_due(self._loop.time()):
                stance.stir()
            elif stance.told_position > NEAR:
                self._put_off(stance, asked_at)

    def _put_off(self, stance: Stance, asked_at: float) -> None:
        """It stands far back and is not told now: if it is time for it, it is looked at again when poll_min is over
        once more."""
        self._look_seldom_at(stance)
        if stance in self._ripe or stance.look_at <= asked_at:
            self._ripe.discard(stance)
            self._plan_far(stance, asked_at)
