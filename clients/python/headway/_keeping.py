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
_MOST_IDLE = 100  # times at which nothing is due any more, before they are dropped

_Together = dict[Lease, None]  # leases that are due at one time


class Keeping:
    """Extends each lease at a third of its span until it is let go, as what is settled or lost must be; `run` it in a
    task.

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
        self._kept: dict[Lease, _Together] = {}  # each with those it is due with; with none while it is extended
        self._due: list[tuple[float, int, _Together]] = []  # holds each that is kept and not being extended once
        self._numbers = count()
        self._has_news = asyncio.Event()
        self._failures = 0

    def keep(self, leases: Sequence[Lease]) -> None:
        """Begins to, with leases that were given together."""
        if leases:
            self._ask_at(min(lease.due_at for lease in leases), leases)

    def let_go(self, lease: Lease) -> None:
        """Ends it: whoever has it now lets it lapse, or keeps it. Nothing of it, such as its payload, is held here."""
        if together := self._kept.pop(lease, None):
            del together[lease]
            if not together:
                together.clear()  # else it would keep the room it had for them

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
        self._due.clear()
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
            together = dict.fromkeys(leases)
            self._kept.update(dict.fromkeys(leases, together))
            heapq.heappush(self._due, (at, next(self._numbers), together))
            self._has_news.set()
            if len(self._due) > 2 * len(self._kept) + _MOST_IDLE:  # they would stay until their time comes
                self._due = [due for due in self._due if due[2]]
                heapq.heapify(self._due)

    async def _extend_due(self) -> None:
        now = _clock()
        asked: list[Lease] = []
        while self._due and self._due[0][0] <= now:
            together = heapq.heappop(self._due)[2]
            asked += together
            together.clear()
        old = [lease for lease in asked if lease.is_old]
        others = [lease for lease in asked if not lease.is_old]
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
        # Not what was let go meanwhile, or is due again.
        self._ask_at(asked_at + pause, [lease for lease in leases if self._kept.get(lease) == {}])


def _pause(leases: Sequence[Lease]) -> float:
    return min(lease.span for lease in leases).total_seconds() * _SHARE


def _clock() -> float:
    return asyncio.get_running_loop().time()
