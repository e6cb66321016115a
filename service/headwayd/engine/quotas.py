"""The quotas of one namespace, as one process keeps them.

What lies in the store is summed up over the namespace's queues, at most once a second and so that it takes a twentieth
of the time at most; in between this process adds what it let in itself, and at any time what its calls and streams may
yet add. So no process lets in more than the quota by what it knows, and all together overshoot it by no more than what
the others let in between two looks. Calls and streams are counted in each process for itself.

One look at a time is under way, and whoever needs what it finds waits for it within the time of its own call. The look
goes on without them: in a large store it may take longer than any call may.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from headwayd.domain.access import NO_QUOTAS, Quotas, Used
from headwayd.domain.bare import all_bytes
from headwayd.domain.errors import OutcomeUnknown, QuotaExceeded, StoreUnavailable
from headwayd.domain.joined import Joined
from headwayd.domain.model import NewMessage, PutCode, PutOutcome
from headwayd.engine.budgets import Budget

_LOOK_EVERY_S = 1.0
_ADDS = frozenset({PutCode.QUEUED, PutCode.DELAYED, PutCode.REPLACED})  # the last: its bytes
_IDLE_AFTER_S = 5.0  # its calls have been forgotten by then, and what was let in since the last look is in the next
_LOOK_SHARE = 20  # a look that took long is not repeated before so many times as long
_WAIT_SHARE = 0.5  # of a call's time, for a look without which it could go on

Look = Callable[[bool], Awaitable[Used]]


class Claim:
    """Leases that one call or stream may yet be given: what it asks for, less what it has."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._wanted = 0
        self._has = 0
        self._open = 0

    async def want(self, count: int, budget: Budget) -> None:
        """It asks for so many in all. Raises QuotaExceeded; then it asks for what it asked before."""
        await self._quota.check_leases(count - self._wanted, budget)
        self._wanted = count
        self._count()

    async def want_for(self, count: int, ending: Sequence[str], budget: Budget) -> int:
        """The same of who names leases that end in the same step. How many it may be given whatever becomes of those:
        all if there is room, else as many as are more than it names."""
        try:
            await self.want(count, budget)
        except QuotaExceeded:
            if not ending:
                raise
            count = max(0, count - len(set(ending)))
            await self.want(count, budget)
        return count

    def got(self, count: int, *, held: int) -> None:
        """It was given so many more, and has so many now."""
        self._has = held
        self._quota.note_leased(count)
        self._count()

    def end(self) -> None:
        """It asks for nothing any more."""
        self._wanted = 0
        self._count()

    def _count(self) -> None:
        still_open = max(0, self._wanted - self._has)
        self._quota.claimed += still_open - self._open
        self._open = still_open


class PutClaim:
    """Messages that one Put may yet add, within its block: as long as it waits for room, say. What is known to have
    joined is counted like all that was let in since the last look, and so is what may have."""

    __slots__ = ("_bytes", "_count", "_counts_bytes", "_quota")

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._count = self._bytes = 0
        self._counts_bytes = False

    def __enter__(self) -> PutClaim:
        return self

    async def want(self, messages: Sequence[NewMessage], budget: Budget) -> bool:
        """It is about to put these. Whether `note` must be told what becomes of them. Raises QuotaExceeded."""
        self._count, self._bytes = await self._quota.check_put(len(messages), lambda: all_bytes(messages), budget)
        self._counts_bytes = self._bytes > 0
        self._quota.claim_put(self._count, self._bytes)
        return self._count > 0

    def note(self, messages: Sequence[NewMessage], outcomes: Sequence[PutOutcome]) -> None:
        """What became of these of them. Nothing more is claimed when its block has ended, and its caller has gone."""
        if not self._count:
            return
        self._release(len(messages), self._size_of(messages))
        if type(outcomes) is not Joined:
            messages = [message for message, one in zip(messages, outcomes, strict=True) if one.code in _ADDS]
        self._quota.note_put(len(messages), self._size_of(messages))

    def _size_of(self, messages: Sequence[NewMessage]) -> int:
        return all_bytes(messages) if self._counts_bytes else 0

    def _release(self, count: int, size: int) -> None:
        self._count -= count
        self._bytes -= size
        self._quota.claim_put(-count, -size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (OutcomeUnknown, asyncio.CancelledError)):  # they may have joined
            self._quota.note_put(self._count, self._bytes)
        self._release(self._count, self._bytes)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look has found, and the queues that are made on its word."""

    used: Used
    to_be_made: set[str] = field(default_factory=set)


class Quota:
    """Counts and refuses, with QuotaExceeded. `limits` may be replaced at any time. `look` asks the store what the
    namespace has, with or without the bytes. What asks for that raises what `look` raises, and StoreUnavailable when
    the time of its call is over."""

    def __init__(self, look: Look) -> None:
        self.limits: Quotas = NO_QUOTAS
        self.claimed = 0
        self._look = look
        self._looking: asyncio.Task[_Seen] | None = None  # the look that is under way
        self._seen: _Seen | None = None  # at the last look
        self._look_again_at = 0.0
        self._failed: StoreUnavailable | None = None  # the last look, so that it is not begun anew before that time
        self._put_count = self._put_bytes = self._leased_count = 0  # let in since the last look began
        self._claimed_count = self._claimed_bytes = 0  # of messages that Puts under way may yet add
        self._stream_count = 0
        self._calls_left = 0.0
        self._calls_counted_at = 0.0

    async def close(self) -> None:
        """Ends the look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    @property
    def is_idle(self) -> bool:
        """Whether another one that is made in its place would let in no more, and look no more often: nothing was asked
        of it lately, and its next look is due."""
        idle_at = max(self._calls_counted_at + _IDLE_AFTER_S, self._look_again_at)
        return self._looking is None and asyncio.get_running_loop().time() > idle_at

    # -- calls and streams ----------------------------------------------------------------------------------------

    def count_call(self, *, is_settling: bool) -> None:
        """A call begins. One that only ends work is counted and never refused."""
        now, counted_at = asyncio.get_running_loop().time(), self._calls_counted_at
        self._calls_counted_at = now
        rate = self.limits.calls_per_second
        if rate is None:
            return
        self._calls_left = min(float(rate), self._calls_left + (now - counted_at) * rate)
        if self._calls_left < 1 and not is_settling:
            raise _exceeded("calls_per_second", rate, retry_after_ms=round((1 - self._calls_left) * 1_000 / rate) + 1)
        self._calls_left = max(self._calls_left - 1, float(-rate))

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Within this block a stream is open."""
        most = self.limits.streams
        if most is not None and self._stream_count >= most:
            raise _exceeded("streams", most)
        self._stream_count += 1
        try:
            yield
        finally:
            self._stream_count -= 1

    # -- what lies in the store -----------------------------------------------------------------------------------

    async def check_queues(self, queue: str, budget: Budget) -> None:
        """Before this queue is made. Those who come together share a look, and what it has found room for."""
        most = self.limits.queues
        if most is None:
            return
        seen = await self._newly_seen(budget)
        if queue in seen.used.queues:
            return
        if len(seen.used.queues) + len(seen.to_be_made - {queue}) >= most:
            raise _exceeded("queues", most)
        seen.to_be_made.add(queue)

    async def _newly_seen(self, budget: Budget) -> _Seen:
        """By a look that begins now; where that takes long or fails, by the last one."""
        within = budget if self._seen is None else Budget(budget.left_s * _WAIT_SHARE)
        try:
            if self._looking is not None:  # it may have begun before the last queue was made
                await _ended(self._looking, within)
            return await _ended(self._looking or self._begin_to_look(), within)
        except StoreUnavailable:
            if self._seen is None:
                raise
            return self._seen

    async def check_put(self, count: int, size: Callable[[], int], budget: Budget) -> tuple[int, int]:
        """Before so many messages are put; `size` tells their bytes. How many messages and bytes are to be claimed."""
        limits = self.limits
        if limits.messages is None and limits.bytes is None:
            return 0, 0
        used = await self._fresh(budget)
        most = limits.messages
        if most is not None and used.messages + self._put_count + self._claimed_count + count > most:
            raise _exceeded("messages", most)
        size_bytes = size() if limits.bytes is not None else 0
        if limits.bytes is not None and used.bytes + self._put_bytes + self._claimed_bytes + size_bytes > limits.bytes:
            raise _exceeded("bytes", limits.bytes)
        return count, size_bytes

    def claim_put(self, count: int, size_bytes: int) -> None:
        """Puts under way may add so much more, or less, than before."""
        self._claimed_count += count
        self._claimed_bytes += size_bytes

    def note_put(self, count: int, size_bytes: int) -> None:
        """So much was put."""
        self._put_count += count
        self._put_bytes += size_bytes

    async def check_leases(self, count: int, budget: Budget) -> None:
        """Before so many leases more are asked for."""
        most = self.limits.leases
        if most is None or count <= 0:
            return
        used = await self._fresh(budget)
        if used.leases + self._leased_count + self.claimed + count > most:
            raise _exceeded("leases", most)

    def note_leased(self, count: int) -> None:
        """So many were leased."""
        self._leased_count += count

    @contextlib.contextmanager
    def claim(self) -> Iterator[Claim]:
        """Within this block a call or stream may be given leases."""
        claim = Claim(self)
        try:
            yield claim
        finally:
            claim.end()

    async def _fresh(self, budget: Budget) -> Used:
        """What was found at the last look. Whoever finds it old looks again, and goes on with it if that takes long or
        fails; the others go on with it meanwhile."""
        if self._seen is None:
            return (await _ended(self._looking or self._begin_to_look(), budget)).used
        if self._looking is None and asyncio.get_running_loop().time() >= self._look_again_at:
            look = self._begin_to_look()
            await asyncio.wait({look}, timeout=budget.left_s * _WAIT_SHARE)
            if look.done() and self._failed is None:
                look.result()
        return self._seen.used

    def _begin_to_look(self) -> asyncio.Task[_Seen]:
        """Raises what the last look met, if that was a moment ago."""
        if self._failed is not None and asyncio.get_running_loop().time() < self._look_again_at:
            raise self._failed.with_traceback(None)  # else it would grow with each
        self._looking = asyncio.create_task(self._look_now(), name="quota")
        self._looking.add_done_callback(self._looked)
        return self._looking

    def _looked(self, look: asyncio.Task[_Seen]) -> None:
        self._looking = None
        error = None if look.cancelled() else look.exception()
        self._failed = error if isinstance(error, StoreUnavailable) else None
        if error is not None:  # who still waits is told
            self._look_again_at = asyncio.get_running_loop().time() + _LOOK_EVERY_S

    async def _look_now(self) -> _Seen:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        put_count, put_bytes, leased_count = self._put_count, self._put_bytes, self._leased_count
        made_before = set(self._seen.to_be_made) if self._seen is not None else set()
        used = await self._look(self.limits.bytes is not None)
        # Only now: others go on with what was known before, and a look that fails tells nothing.
        self._put_count -= put_count
        self._put_bytes -= put_bytes
        self._leased_count -= leased_count
        self._look_again_at = loop.time() + max(_LOOK_EVERY_S, _LOOK_SHARE * (loop.time() - began_at))
        made_since = self._seen.to_be_made - made_before if self._seen is not None else set()
        self._seen = _Seen(used, made_since.difference(used.queues))
        return self._seen


async def _ended(look: asyncio.Task[_Seen], budget: Budget) -> _Seen:
    await asyncio.wait({look}, timeout=budget.left_s)
    if not look.done():
        raise StoreUnavailable("the store did not tell in time what the namespace has", metadata={"cause": "SILENT"})
    return look.result()


def _exceeded(quota: str, most: int, *, retry_after_ms: int | None = None) -> QuotaExceeded:
    return QuotaExceeded(
        f"the namespace has used up its quota of {quota}: {most}",
        metadata={"quota": quota, "limit": str(most)},
        retry_after_ms=retry_after_ms,
    )
