"""One message as one stream watches it, and one stream.

A stream is told the latest of each of its messages and never a backlog: at most one thing is pending for each, worked
out only when the stream is ready to take it. So a slow reader costs nothing and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwayd.domain.errors import HeadwayError
from headwayd.domain.model import Outcome
from headwayd.domain.places import Event, MessagePlace, Progress, Whereabouts
from headwayd.domain.watching import End, Told
from headwayd.engine.watching.line import Glance
from headwayd.engine.watching.rousing import Rousing

_ENDS = {
    Outcome.DONE: End.DONE,
    Outcome.DEAD: End.DEAD,
    Outcome.WITHDRAWN: End.WITHDRAWN,
    Outcome.EXPIRED: End.EXPIRED,
    Outcome.UNKNOWN: End.TAKEN,
}
_TAKEN_CAUSE = "taken by a foreign client"
_FORGOTTEN_CAUSE = "no longer known"
_UNKNOWN_CAUSE = "no such message is known"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a message ended."""

    end: End
    result: bytes = b""
    cause: str = ""


def ending_of(told: MessagePlace | Event) -> Ending:
    """The end that a place or an event tells of."""
    end = _ENDS[told.outcome or Outcome.UNKNOWN]
    cause = _TAKEN_CAUSE if end is End.TAKEN else told.cause
    return Ending(end, told.result if end is End.DONE else b"", cause)


def unknown(*, was_known: bool) -> Ending:
    """Nobody knows such a message (any more)."""
    return Ending(End.UNKNOWN, cause=_FORGOTTEN_CAUSE if was_known else _UNKNOWN_CAUSE)


class Watch:
    """One message on one stream: what is known of it, and what was told last. `position` is the rank at `glance`, 0 if
    it is not known or the message does not wait."""

    __slots__ = (
        "attempt",
        "due_at_ms",
        "ending",
        "glance",
        "id",
        "is_changed",
        "is_pending",
        "position",
        "progress",
        "ref",
        "state",
        "told_at",
        "told_position",
        "watcher",
    )

    def __init__(self, message_id: str, watcher: Watcher) -> None:
        self.id = message_id
        self.watcher = watcher
        self.state = Whereabouts.UNKNOWN
        self.ref = ""
        self.glance: Glance | None = None
        self.position = 0
        self.attempt = 0
        self.progress: Progress | None = None
        self.due_at_ms = 0
        self.ending: Ending | None = None
        self.is_changed = True  # in a way that is told at once, since it was told last
        self.is_pending = False
        self.told_position = 0  # of what was told last; 0: something else, or nothing
        self.told_at = 0.0

    @property
    def ticket(self) -> int:
        """While it waits."""
        return int(self.ref)

    def become(self, state: Whereabouts, glance: Glance) -> None:
        """It is known to be in this state at that look."""
        self.state = state
        self.glance = glance
        self.position = 0
        self.progress = None
        self.is_changed = True

    def end(self, ending: Ending, glance: Glance | None) -> None:
        """It has come to its end, as that look told; None: when that was nobody knows."""
        self.state = Whereabouts.FINISHED
        self.ending = ending
        self.glance = glance
        self.is_changed = True


class Watcher:
    """One stream over some messages. `tell` works out what is to be told of one now: None if that is not known for
    sure at the moment; then `news` is waited for. Of many who are stirred together `rousing` says who wakes when."""

    __slots__ = ("_arrived", "_error", "_is_stirred", "_next", "_rousing", "_unfinished", "_wake", "watches")

    def __init__(self, message_ids: Sequence[str], rousing: Rousing | None = None) -> None:
        self.watches = tuple(Watch(message_id, self) for message_id in message_ids)
        self._unfinished = len(self.watches)
        self._arrived: list[Watch] = []  # pending, the newest last
        self._next: list[Watch] = []  # pending before those, the next last
        self._error: HeadwayError | None = None
        self._rousing = rousing
        self._wake: asyncio.Future[None] | None = None
        self._is_stirred = False  # since it waits

    def unfinished_ids(self, *, found: bool) -> list[str]:
        """Of messages that have no end that is known: those that were found, or those of which nothing was heard."""
        unfinished = (watch for watch in self.watches if watch.state is not Whereabouts.FINISHED)
        return [watch.id for watch in unfinished if bool(watch.ref) is found]

    def note(self, watch: Watch) -> None:
        """There is something to tell of this one."""
        if not watch.is_pending:
            watch.is_pending = True
            self._arrived.append(watch)
            self._stir()

    def fail(self, error: HeadwayError) -> None:
        """Ends the stream."""
        self._error = self._error or error
        self._stir()

    def _stir(self) -> None:
        if self._wake is None or self._wake.done() or self._is_stirred:
            return
        self._is_stirred = True
        if self._rousing is None:
            self._wake.set_result(None)
        else:
            self._rousing.rouse(self._wake)

    async def next(self, tell: Callable[[Watch], Told | None], news: Callable[[], asyncio.Future[None]]) -> Told | None:
        """The next thing to be told; None when every message has ended and that was told. Raises what `fail` was
        given."""
        while True:
            if self._error is not None:
                raise self._error
            if not self._next:
                self._next, self._arrived = self._arrived[::-1], self._next
            if self._next:
                watch = self._next[-1]
                told = tell(watch)
                if told is None:
                    await self._wait(news())
                    continue
                self._next.pop()
                watch.is_pending = False
                if watch.state is Whereabouts.FINISHED:
                    self._unfinished -= 1
                return told
            if not self._unfinished:
                return None
            await self._wait(None)

    async def _wait(self, news: asyncio.Future[None] | None) -> None:
        self._wake, self._is_stirred = asyncio.get_running_loop().create_future(), False
        try:
            if news is None:
                await self._wake
            else:
                await asyncio.wait((self._wake, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._wake = None
