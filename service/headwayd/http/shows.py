"""What pages show, sampled once for all pages that show the same to the same caller.

A show is what one view of the dashboard consists of, part by part, each only ever the latest: who reads slowly misses
what was there between, and delays nobody. It runs while a page is joined, and ends with the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from headwayd.domain.calls import CallFailed, Code

_MOST_SHOWS = 100  # with different credentials or views
log = structlog.get_logger(__name__)


class Show:
    """The parts of one view. Belongs to one event loop."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._number = 0  # of the latest change
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.end: CallFailed | None = None  # why nothing more will come

    def tell(self, part: str, event: str, data: bytes) -> None:
        """This is the part now: an event of this name, with data in one line. The same again changes nothing."""
        framed = b"event: %s\ndata: %s\n\n" % (event.encode(), data)
        if part in self._parts and self._parts[part][1] == framed:
            return
        self._number += 1
        self._parts[part] = self._number, framed
        self._announce()

    def drop(self, part: str) -> None:
        """There is no such part any more; who has it is told by another one."""
        self._parts.pop(part, None)

    def has(self, part: str) -> bool:
        """Whether it has been told."""
        return part in self._parts

    def finish(self, error: CallFailed) -> None:
        """Nothing more will come."""
        self.end = self.end or error
        self._announce()

    def _announce(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def newer_than(self, seen: int) -> tuple[int, bytes]:
        """The parts that changed after number `seen`, and the number of the latest; waits until there are any, or until
        nothing more will come: then they are none."""
        while self._number <= seen and self.end is None:
            await asyncio.shield(self._changed)
        return self._number, b"".join(framed for number, framed in self._parts.values() if number > seen)


Run = Callable[[Show], Awaitable[None]]


@dataclass(slots=True)
class _Running:
    show: Show
    task: asyncio.Task[None]
    pages: int = field(default=0)


class Shows:
    """All that run in this process. `close` them before the service stops taking calls: their pages hold the port open
    otherwise."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running] = {}
        self._is_closed = False

    def close(self) -> None:
        """Ends all, and begins no more. Idempotent."""
        self._is_closed = True
        for running in self._running.values():
            running.show.finish(_going_down())

    @asynccontextmanager
    async def join(self, key: Hashable, run: Run) -> AsyncGenerator[Show, None]:
        """The show of this key; `run` feeds it if it does not run yet. Raises CallFailed if too many run, or if they
        are closed."""
        if self._is_closed:
            raise _going_down()
        running = self._running.get(key)
        if running is None or running.show.end is not None:
            if len(self._running) >= _MOST_SHOWS:
                raise CallFailed(Code.RESOURCE_EXHAUSTED, "the dashboard is looked at in too many different ways")
            show = Show()
            running = self._running[key] = _Running(show, asyncio.create_task(_guarded(run, show), name="dashboard"))
        running.pages += 1
        try:
            yield running.show
        finally:
            running.pages -= 1
            if running.pages == 0:
                if self._running.get(key) is running:
                    del self._running[key]
                running.task.cancel()
                await asyncio.wait({running.task})


def _going_down() -> CallFailed:
    return CallFailed(Code.UNAVAILABLE, "this service process is going down")


async def _guarded(run: Run, show: Show) -> None:
    """Nobody must wait for a show that is no more."""
    try:
        await run(show)
    except CallFailed as error:
        show.finish(error)
    except Exception:  # loop guard: the page asks again
        log.exception("dashboard.failed")
        show.finish(CallFailed(Code.UNAVAILABLE, "the dashboard has failed; the service's log says why"))
