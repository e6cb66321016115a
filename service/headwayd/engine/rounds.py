"""Looks after those who sleep until a hint comes, because a hint may be lost.

Once a second those who have slept for long are checked, the longest asleep first, many by one question to the store:
for whom a look would still be in vain sleeps on. Rarely each of them looks all the same, for what such a check does not
see. So what is lost is found about as soon with very many sleepers as with one, and costs about as little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from headwayd.engine.tasks import Spawn

ROUND_S = 1.0
CHECK_S = 5.0  # who has slept for so long is checked
LOOKS_A_ROUND = 5
_CHECKS_A_LOOK = 12  # so many checks are enough
_VAIN_LOOK_S = 6.0  # from one look that is thought to be in vain to the next, of all sleepers

FindQuiet = Callable[[Sequence[str]], Awaitable[Collection[str]]]


class Sleeper(Protocol):
    """Who sleeps until a hint comes, and is checked."""

    quiet_since: float | None  # asleep, and not checked since then; None: awake
    checks: int  # since the last look

    def look(self) -> None:
        """Wakes it: it looks, whatever it thinks to know."""
        ...


async def none_quiet(_queues: Sequence[str]) -> Collection[str]:
    """For those of whom no question can tell that a look would be in vain."""
    return ()


class Rounds:
    """Of all sleepers by queue, as long as there are any. `find_quiet` tells for which of some queues a look would be
    in vain, and is asked of `most` at once."""

    def __init__(
        self,
        sleepers: Mapping[str, Sleeper],
        find_quiet: FindQuiet,
        spawn: Spawn,
        *,
        kind: str,
        most: int,
    ) -> None:
        self._sleepers = sleepers
        self._find_quiet = find_quiet
        self._spawn = spawn
        self._kind = kind
        self._most = most
        self._is_due = False
        self._looked_at = float("-inf")

    def plan(self) -> None:
        """There is somebody to look after."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(ROUND_S, self._begin)

    def _begin(self) -> None:
        if self._sleepers:
            self._spawn(self._go(), f"round:{self._kind}")
        else:
            self._is_due = False

    async def _go(self) -> None:
        try:
            await self.check(asyncio.get_running_loop().time())
        finally:
            self._is_due = False
            self.plan()

    async def check(self, now: float) -> None:
        """One round."""
        asleep = [
            (sleeper.quiet_since, queue)
            for queue, sleeper in self._sleepers.items()
            if sleeper.quiet_since is not None and now - sleeper.quiet_since >= CHECK_S
        ]
        if not asleep:
            return
        checked = sorted(asleep)[: self._most]
        quiet = await self._find_quiet([queue for _, queue in checked])
        for since, queue in checked:
            sleeper = self._sleepers.get(queue)
            if sleeper is None or sleeper.quiet_since != since:
                continue  # it was woken meanwhile
            sleeper.quiet_since = now
            sleeper.checks += 1
            if queue not in quiet:
                sleeper.look()
            elif sleeper.checks >= _CHECKS_A_LOOK and now - self._looked_at >= _VAIN_LOOK_S:
                self._looked_at = now
                sleeper.look()
