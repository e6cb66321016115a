"""All metrics of this process, read when somebody asks: its own numbers, those of the other workers, and the state of
queues from the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headwayd import __version__
from headwayd.engine.counting.census import Census
from headwayd.engine.counting.counts import Counts
from headwayd.telemetry import metric_names as names
from headwayd.telemetry import reading as readings
from headwayd.telemetry.exposition import END, content_type_of, text_of
from headwayd.telemetry.reading import Reading
from headwayd.telemetry.sharing import WRITE_EVERY_S, Shared

_TICK_S = 0.25
_TICKS_PER_WRITE = int(WRITE_EVERY_S / _TICK_S)
# Of several workers it may always be another one that is scraped, and looks at the queues.
_FORGET_EVERY_S = 60.0
_TICKS_PER_FORGETTING = int(_FORGET_EVERY_S / _TICK_S)


class Metrics:
    """What is asked. `run` keeps up what must be measured all the time; `shared` has the numbers of other workers, if
    there are any."""

    def __init__(
        self,
        counts: Counts,
        census: Census,
        *,
        watcher_count: Callable[[], int],
        keeps_flood_out: Callable[[], bool],
        shared: Shared | None = None,
    ) -> None:
        self._counts = counts
        self._census = census
        self._watcher_count = watcher_count
        self._keeps_flood_out = keeps_flood_out
        self._shared = shared
        self.is_ready = False
        for queue in shared.queues_before if shared is not None else ():
            counts.of(queue)

    async def run(self) -> None:
        """Measures how late the event loop is, and shares the numbers, until cancelled."""
        ticks = 0
        while True:
            began = time.perf_counter()  # the loop's own clock stands still while it is late
            await asyncio.sleep(_TICK_S)
            self._counts.loop_lag.note(max(time.perf_counter() - began - _TICK_S, 0.0))
            ticks += 1
            if self._shared is not None:
                if ticks % _TICKS_PER_FORGETTING == 0:
                    await self._census.forget_gone()
                if ticks % _TICKS_PER_WRITE == 0:
                    self._shared.write(self.own())

    def own(self) -> Reading:
        """Of this process alone."""
        return readings.of_counts(self._counts) | {
            names.WATCHERS.name: {(): self._watcher_count()},
            names.FLOOD_KEPT_OUT.name: {(): int(self._keeps_flood_out())},
            names.READY.name: {(): int(self.is_ready)},
            names.BUILD_INFO.name: {(__version__,): 1},
        }

    async def read(self, *, of_all: bool) -> Reading:
        """Everything, of this process or of all workers. Takes no longer than a second, whatever the store does."""
        seen = await self._census.look()
        own = self.own()
        if of_all and self._shared is not None:
            own = self._shared.all(own)
        return own | readings.of_census(seen)

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The text of /metrics and its content type, for an `Accept` header."""
        reading, content_type = await self.read(of_all=True), content_type_of(accept)
        parts = []
        for metric in names.ALL:
            parts.append(text_of(metric, reading, content_type))
            await asyncio.sleep(0)  # with many queues this takes some milliseconds, and calls are served between
        parts.append(END[content_type])
        return "".join(parts).encode(), content_type
