"""The watches of one feed: found by the reference of their message, and by when they are next to be looked at.

The update rule. A watch is told of every step while its message stands among the first `NEAR`, or was told so last.
Farther back it is told when its position has changed by a tenth, not before poll_min for the position told last, and
when it comes among the first. And every watch is told at poll_max, whether or not anything changed.

So that one step of a long line touches few: a position falls by one at most for each message that leaves the line, and
rises by one at most for each that comes back. Both are counted here, and a watch that was told position p need not be
looked at before so many have left, or come back, that it could be due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwayd.domain.hints import PollHints, poll_hints
from headwayd.domain.model import Policy
from headwayd.domain.places import NEAR, Whereabouts
from headwayd.engine.watching.alarms import Alarms
from headwayd.engine.watching.telling import due_at, step_above, step_below
from headwayd.engine.watching.watch import Watch


class Roll:
    """Watches whose messages have not ended. Spans of time are by this process's clock."""

    def __init__(self) -> None:
        self.policy = Policy()
        self._by_ref: dict[str, dict[Watch, None]] = {}
        self._near: dict[Watch, None] = {}
        self._times: Alarms[Watch] = Alarms()
        self._falls: Alarms[Watch] = Alarms()  # by how many have left
        self._rises: Alarms[Watch] = Alarms()  # by how many came back
        self._passing: Alarms[Watch] = Alarms()  # by ticket: when the head has passed it
        self._left = 0
        self._back = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody is on it."""
        return not self._by_ref

    def __iter__(self) -> Iterator[Watch]:
        for watches in tuple(self._by_ref.values()):
            yield from tuple(watches)

    def hints(self, position: int) -> PollHints:
        """How often it is worth asking for this position."""
        return poll_hints(self.policy, position)

    # -- who is where -------------------------------------------------------------------------------------------------

    def of(self, ref: str) -> Iterable[Watch]:
        """The watches of the message kept under this reference."""
        watches = self._by_ref.get(ref)
        return tuple(watches) if watches else ()

    def enter(self, watch: Watch, ref: str) -> None:
        """The message is kept under this reference from now on."""
        if watch.ref != ref:
            self._strike(watch)
            watch.ref = ref
        self._by_ref.setdefault(ref, {})[watch] = None

    def await_head(self, watch: Watch) -> None:
        """It waits behind the head: `passed` tells when it does no more."""
        self._passing.set(watch, watch.ticket)

    def rest(self, watch: Watch) -> None:
        """It does not wait any more, or not where it did."""
        self._near.pop(watch, None)
        for alarms in (self._times, self._falls, self._rises, self._passing):
            alarms.drop(watch)

    def leave(self, watch: Watch) -> None:
        """Ended, or no longer watched."""
        self._strike(watch)
        self.rest(watch)

    def _strike(self, watch: Watch) -> None:
        watches = self._by_ref.get(watch.ref)
        if watches is not None and watches.pop(watch, watch) is None and not watches:
            del self._by_ref[watch.ref]

    # -- who is to be looked at ---------------------------------------------------------------------------------------

    def count(self, *, left: int, back: int) -> None:
        """So many messages left the line, and so many came back to it."""
        self._left += max(left, 0)
        self._back += back

    def moved(self) -> list[Watch]:
        """Those whose position may have changed enough by what was counted, and all near the head."""
        return [*self._near, *self._falls.pop(self._left), *self._rises.pop(self._back)]

    def come(self, now: float) -> list[Watch]:
        """Those whose time has come."""
        return self._times.pop(now)

    def passed(self, head: int) -> list[Watch]:
        """Those that waited behind the head and were passed by it."""
        return [watch for watch in self._passing.pop(head) if watch.state is Whereabouts.WAITING]

    def next_time(self) -> float | None:
        """When `come` will next tell of somebody."""
        return self._times.first()

    def is_due(self, watch: Watch, now: float) -> bool:
        """Whether a waiting message's position, as it is known, is to be told now."""
        told = watch.told_position
        if watch.is_changed or not told:
            return True
        return now >= due_at(told, watch.position, told_at=watch.told_at, hints=self.hints(told))

    def put_off(self, watch: Watch, now: float) -> None:
        """A waiting message is not due now: it is looked at when it may be."""
        told, position = watch.told_position, watch.position
        hints = self.hints(told)
        may_step_at = watch.told_at + hints.poll_min_ms / 1000
        must_step_at = watch.told_at + hints.poll_max_ms / 1000
        if told <= NEAR:
            self._near[watch] = None
            self._times.set(watch, must_step_at)
            return
        self._near.pop(watch, None)
        if now < may_step_at:
            self._times.set(watch, may_step_at)
            self._falls.set(watch, self._left + position - NEAR)
            self._rises.drop(watch)
        else:
            self._times.set(watch, must_step_at)
            self._falls.set(watch, self._left + max(position - step_below(told), 1))
            self._rises.set(watch, self._back + max(step_above(told) - position, 1))
