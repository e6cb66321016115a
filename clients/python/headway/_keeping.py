"""Keeps many leases alive: those that are due together are extended in one request."""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from headway._lease import Lease
from headway.core.connecting import backoff_seconds
from headway.v1.message_pb2 import SettleResult

_log = logging.getLogger("headway")

_SHARE = 1 / 3  # of its span: when a lease is extended
_SHORTEST_SECONDS = 0.1  # what an extension may take at least


class Keeping:
    """Extends each lease at a third of its span until it is settled, found lost or let go; `run` it in a task.

    lease: by how much; None: as the queue's policy says, and how much that is is told by the answer.
    longest: the longest span that a lease was seen to have. No answer is taken for a longer one, and an old lease, of
    which nobody knows how long it lasts, is extended by that.
    """

    def __init__(
        self,
        extend: Callable[[Sequence[str], timedelta | None], Awaitable[Sequence[SettleResult]]],
        *,
        lease: timedelta | None,
        longest: timedelta,
        most: int,
    ) -> None:
        self._extend = extend
        self._lease = lease
        self.longest = longest
        self._most = most  # in one request
        self._kept: set[Lease] = set()
        self._due: list[tuple[float, int, Sequence[Lease]]] = []
        self._numbers = count()
        self._has_news = asyncio.Event()
        self._failures = 0

    def keep(self, leases: Sequence[Lease]) -> None:
        """Begins to, with leases that were given together."""
        self._kept.update(leases)
        if leases:
            self._ask_at(min(lease.due_at for lease in leases), leases)

    def let_go(self, lease: Lease) -> None:
        """Ends it: whoever has it now lets it lapse, or keeps it."""
        self._kept.discard(lease)

    @contextmanager
    def while_held(self, lease: Lease) -> Iterator[None]:
        """Keeps one alive while the block runs, and leaves it as it was behind it."""
        was_kept = lease in self._kept
        if not was_kept:
            self.keep([lease])
        try:
            yield
        finally:
            if not was_kept:
                self.let_go(lease)

    def ask_all(self) -> None:
        """Asks for every lease now: something has happened that may have ended them."""
        self._ask_at(_clock(), list(self._kept))

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            self._has_news.clear()
            try:
                async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                    await self._has_news.wait()
            except TimeoutError:
                await self._extend_due()

    def _ask_at(self, at: float, leases: Sequence[Lease]) -> None:
        if leases:
            heapq.heappush(self._due, (at, next(self._numbers), leases))
            self._has_news.set()

    async def _extend_due(self) -> None:
        now = _clock()
        asked: dict[Lease, None] = {}
        while self._due and self._due[0][0] <= now:
            asked |= dict.fromkeys(lease for lease in heapq.heappop(self._due)[2] if lease in self._kept)
        self._kept.difference_update(lease for lease in asked if lease.is_settled)
        old = [lease for lease in asked if not lease.is_settled and lease.is_old]
        others = [lease for lease in asked if not lease.is_settled and not lease.is_old]
        for leases, span in ((old, self._lease or self.longest), (others, self._lease)):
            for first in range(0, len(leases), self._most):
                await self._extend_some(leases[first : first + self._most], span)

    async def _extend_some(self, leases: Sequence[Lease], span: timedelta | None) -> None:
        # Also one that is being settled, for that may take a while; what overtakes its extension is no loss.
        asked_at, pause = _clock(), _pause(leases)
        try:
            async with asyncio.timeout(max(pause, _SHORTEST_SECONDS)):
                results = await self._extend([lease.token for lease in leases], span)
        except Exception as error:  # noqa: BLE001 - the loop's guard: a token may be lacking for a while
            self._failures += 1
            pause = min(pause, backoff_seconds(self._failures))
            _log.warning("could not extend %d leases: %s", len(leases), str(error) or repr(error))
        else:
            self._failures = 0
            for lease, result in zip(leases, results, strict=True):
                lease.hear(result, asked_at, span, self.longest)
            pause = _pause(leases)
        self._ask_at(asked_at + pause, [lease for lease in leases if not lease.is_settled])


def _pause(leases: Sequence[Lease]) -> float:
    return min(lease.span for lease in leases).total_seconds() * _SHARE


def _clock() -> float:
    return asyncio.get_running_loop().time()
