"""When it is better to look for calls now and then than to be told of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_JUDGED_EVERY_S = 0.1
_CALLS_PER_S = 700.0  # fewer may be those of a few callers each of whom waits for one answer before the next call
_WAITED = 0.25  # for a core, for each second on one
# Of the thread that reads it: ns on a core, ns ready to run without one, and more (Linux, with schedstats).
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Waiting:
    """How long the thread that asks waited for a core."""

    def __init__(self) -> None:
        self._ran_ns = self._waited_ns = 0  # when that was last asked

    def share(self) -> float:
        """Since it was last asked, in s for each second on one; 0 where the kernel does not tell."""
        try:
            ran, waited, *_ = _SCHEDSTAT.read_bytes().split()
        except OSError:
            return 0.0
        ran_ns, waited_ns = int(ran), int(waited)
        share = (waited_ns - self._waited_ns) / max(ran_ns - self._ran_ns, 1)
        self._ran_ns, self._waited_ns = ran_ns, waited_ns
        return share


class Pacing:
    """For the event loop of this thread. To be told of a call at once costs three threads a turn on a core. Where cores
    are free that is well spent; where threads wait for one, each call is later by what is spent on all others.

    Where the kernel does not tell how long a thread waits, it is told of each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._judged_at = clock()
        self._calls = 0
        self._waiting = Waiting()
        self._pauses = False

    def pauses(self, calls: int) -> bool:
        """Whether to look only now and then, as of the last tenth of a second. `calls`: that have begun since ever."""
        now = self._clock()
        passed_s = now - self._judged_at
        if passed_s >= _JUDGED_EVERY_S:
            is_busy = calls - self._calls >= _CALLS_PER_S * passed_s
            self._pauses = self._waiting.share() > _WAITED and is_busy
            self._judged_at, self._calls = now, calls
        return self._pauses
