"""Keeps the other threads of this process off the event loop's core, while more calls come than it can serve.

They are gRPC's, wake ten thousand times a second, each for a moment, and the kernel has many of them run where the loop
does, though another core is idle. With two cores the loop stood still for a fifth of a flood so, and does not now
(docs/design.md, Overload).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from headwayd.domain.kept import kept
from headwayd.rpc.core.pacing import Waiting

_TASKS = Path("/proc/self/task")
# Of the thread that reads it: its state, and behind its name in parentheses, as the 37th word, the core it is on.
_STAT = Path("/proc/thread-self/stat")
_CORE_AT = 36
# The loop waits so long for each second on a core: cores are short; other processes have them, against whom this helps
# nothing.
_SHORT, _IN_VAIN = 0.15, 0.5
# How long it is kept clear, and how often it is seen to meanwhile.
LASTS_S, AGAIN_S = 3.0, 1.0


class OwnCore:
    """For the event loop of the thread that calls it. The loop itself may run anywhere, and so may what it starts.

    Does nothing with one core, with more than enough of them, and where the kernel is not Linux.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._waiting = Waiting()
        self._cores: Set[int] = frozenset()  # of all threads; none while all may run there
        self._was_in_vain = False

    def keep_clear(self) -> None:
        """For the next three seconds, where cores are short. To be repeated for as long as it matters."""
        self._until = asyncio.get_running_loop().time() + LASTS_S
        if self._keeping is None or self._keeping.done():
            self._keeping = kept(self._keep_clear(), "keep a core clear")

    def end(self) -> None:
        """Nothing is kept clear any more. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def _keep_clear(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.share()  # what was before is of no interest
        try:
            await asyncio.sleep(AGAIN_S / 2)
            while loop.time() < self._until:
                self.clear()
                await asyncio.sleep(AGAIN_S)
        finally:
            self.release()

    def clear(self) -> None:
        """Has all other threads leave the core that this one is on, if cores have been short since the last time, and
        those follow that came since. To be repeated now and then; takes 0.12 ms with 30 threads."""
        share = self._waiting.share()
        if share > _IN_VAIN and self._cores:
            self.release()
            self._was_in_vain = True
        if self._was_in_vain or share > _IN_VAIN or not (self._cores or share > _SHORT):
            return
        with suppress(OSError):
            cores = self._cores or os.sched_getaffinity(0)
            others = cores - {int(_STAT.read_text(encoding="utf-8").rpartition(")")[2].split()[_CORE_AT])}
            if others:
                self._cores = cores
                _put(others)

    def release(self) -> None:
        """All threads may run where they might at first. Idempotent."""
        if self._cores:
            _put(self._cores)
        self._cores, self._was_in_vain = frozenset(), False


def _put(cores: Set[int]) -> None:
    """All threads but this one on these."""
    own = threading.get_native_id()
    for task in _TASKS.iterdir():
        if int(task.name) != own:
            with suppress(OSError):  # it has ended, or may not be moved
                os.sched_setaffinity(int(task.name), cores)
