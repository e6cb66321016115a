"""Calls of one kind that come while another is on its way to the store go there together, as one step.

Whoever comes first goes at once. So an idle service adds no delay, and a busy one asks the store once for many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import frexp
from typing import Generic, TypeVar

from headwayd.domain.errors import StoreUnavailable
from headwayd.engine.eager import eager_task
from headwayd.engine.tasks import Spawn

KeyT = TypeVar("KeyT", bound=Hashable)
AskT = TypeVar("AskT")
AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT")

_MOST_BYTES = 1024 * 1024  # of a step: a larger one would keep others out of the store for too long
_MOST_STEPS = 2  # of a key on their way, if as many wait as go together; else one
_GATHER_S, _GATHER_LONGER_S = 1e-3, 2e-3  # for one in the last step, and for more; uvloop counts in milliseconds
_ALONE = 2  # one in the last step, and one that waits: as if nobody else asked
_LEAST_SHARE = 0.1  # of the time of the one in a step who has most; with less nobody shortens it for the others


def shared_out(whole: Sequence[ItemT], counts: Iterable[int]) -> Iterator[Sequence[ItemT]]:
    """What many share, to each in turn so much of it, as far as it goes."""
    at = 0
    for count in counts:
        yield whole[at : at + count]
        at += count


@dataclass(slots=True, eq=False)
class _Part(Generic[AskT, AnswerT]):
    ask: AskT
    items: int
    size: int
    ends_at: float  # by the loop's clock
    answer: asyncio.Future[AnswerT]
    is_in_step: bool = False

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def time_is_up(self) -> None:
        """Nothing happened, if it is in no step; else the step knows."""
        if not self.is_in_step:
            self.fail(StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}))


@dataclass(slots=True, eq=False)
class _Waiting(Generic[AskT, AnswerT]):
    """Those of one group who are in no step yet, first come first, and when time is up for the first of them: one timer
    for all, because one for each is a good part of what a call costs."""

    parts: deque[_Part[AskT, AnswerT]] = field(default_factory=deque)
    items: int = 0
    size: int = 0
    timer: asyncio.TimerHandle | None = None
    timer_at: float = 0.0

    def put(self, part: _Part[AskT, AnswerT]) -> None:
        self.parts.append(part)
        self.items += part.items
        self.size += part.size

    def take(self) -> _Part[AskT, AnswerT]:
        part = self.parts.popleft()
        self.items -= part.items
        self.size -= part.size
        return part

    def add(self, part: _Part[AskT, AnswerT], loop: asyncio.AbstractEventLoop) -> None:
        self.put(part)
        if self.timer is None or part.ends_at < self.timer_at:
            self.stop()
            self._set(part.ends_at, loop)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def _set(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        self.timer_at = at
        self.timer = loop.call_at(at, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.timer = None
        for part in self.parts:
            if part.ends_at <= loop.time():
                part.time_is_up()
        if left := [part.ends_at for part in self.parts if not part.answer.done()]:
            self._set(min(left), loop)


class Coalescer(Generic[KeyT, AskT, AnswerT]):
    """`run` does one step: it gets a key, what is asked under it in the order it came, and its seconds, and gives back
    an answer to each. One step a key is on its way, of at most `most_items`, unless one asks for more; and one behind
    it if as many wait as go together, so that the store has the next when it has done with one. `unclaimed` is given
    the answers to those who have gone, `failed` the error that would have been theirs. Whoever goes before the step has
    begun has asked for nothing, unless what is asked `outlives` its caller.

    A step has the time of the one in it who has least, because it alone knows whether it may have happened. So those
    go together who have about as much time. `is_off`: each is a step of its own, and nobody waits for another.
    `on_step` is told how many are in each step.
    """

    def __init__(
        self,
        run: Callable[[KeyT, list[AskT], float], Awaitable[Sequence[AnswerT]]],
        spawn: Spawn,
        *,
        name: str,
        most_items: int,
        unclaimed: Callable[[KeyT, AskT, AnswerT], None] = lambda _key, _ask, _answer: None,
        failed: Callable[[KeyT, AskT, Exception], None] = lambda _key, _ask, _error: None,
        outlives: bool = False,
        is_off: bool = False,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._run = run
        self._spawn = spawn
        self._name = name
        self._most_items = most_items
        self._unclaimed = unclaimed
        self._failed = failed
        self._outlives = outlives
        self._is_off = is_off
        self._on_step = on_step or (lambda _count: None)
        self._waiting: dict[tuple[KeyT, int], _Waiting[AskT, AnswerT]] = {}

    async def ask(self, key: KeyT, ask: AskT, *, items: int, size: int = 0, budget_s: float) -> AnswerT:
        """The answer. Raises what the step raises, and within `budget_s` StoreUnavailable or OutcomeUnknown."""
        if self._is_off:
            return await self._alone(key, ask, budget_s)
        loop = asyncio.get_running_loop()
        # Without its type arguments: to name them takes longer than all the rest of making it.
        part: _Part[AskT, AnswerT] = _Part(ask, items, size, loop.time() + budget_s, loop.create_future())
        group = (key, frexp(budget_s)[1])  # within a power of two
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = _Waiting()
            waiting.put(part)  # without a timer: the step that begins now knows its time
            together: list[_Part[AskT, AnswerT]] = []
            first = self._begun(key, together, waiting)
            self._spawn(self._serve(key, group, first, together), f"{self._name}:{key}")
        else:
            waiting.add(part, loop)
        try:
            return await part.answer
        except asyncio.CancelledError:
            self._hand_over(key, ask, part.answer)  # it may have come, and the caller gone before it heard of it
            raise

    async def _alone(self, key: KeyT, ask: AskT, budget_s: float) -> AnswerT:
        step = asyncio.ensure_future(self._one(key, ask, budget_s))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            step.add_done_callback(lambda ended: self._hand_over(key, ask, ended))
            raise

    async def _one(self, key: KeyT, ask: AskT, budget_s: float) -> AnswerT:
        [answer] = await self._run(key, [ask], budget_s)
        return answer

    def _hand_over(self, key: KeyT, ask: AskT, answer: asyncio.Future[AnswerT]) -> None:
        """An answer that nobody waits for any more, if it is one."""
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._unclaimed(key, ask, answer.result())
        elif isinstance(error, Exception):
            self._failed(key, ask, error)

    async def _serve(
        self, key: KeyT, group: tuple[KeyT, int], first: asyncio.Task[None], parts: list[_Part[AskT, AnswerT]]
    ) -> None:
        """Until nobody waits. The first step has begun before: from here it would be a turn of the loop later."""
        waiting = self._waiting[group]
        steps = deque([first])  # on their way
        count = len(parts)  # of the last of them
        try:
            while waiting.parts or steps:
                if waiting.parts and len(steps) < (_MOST_STEPS if self._is_full(waiting) else 1):
                    if parts := self._next(waiting):
                        steps.append(self._begun(key, parts))
                        count = len(parts)
                    continue
                await steps.popleft()
                if waiting.parts and not steps and count + len(waiting.parts) > _ALONE and not self._is_full(waiting):
                    # It is busy: a moment later there are more.
                    await asyncio.sleep(_GATHER_S if count <= 1 else _GATHER_LONGER_S)
        finally:  # without an await since the last look: nobody can have come to what is not served
            del self._waiting[group]
            waiting.stop()
            for step in steps:
                step.cancel()
            for part in waiting.parts:
                part.answer.cancel()

    def _begun(
        self, key: KeyT, parts: list[_Part[AskT, AnswerT]], waiting: _Waiting[AskT, AnswerT] | None = None
    ) -> asyncio.Task[None]:
        """A step in a task of its own. Who is in it hears of its end also if it is cancelled before it runs. Of those
        `waiting` it takes as many as go together when it runs: who comes in the same turn of the loop is in it, too."""

        def ended(step: asyncio.Task[None]) -> None:
            if step.cancelled():
                for part in parts:
                    part.answer.cancel()

        work, name = self._step(key, parts, waiting), f"{self._name}:{key}"
        step = eager_task(work, name=name) if waiting is None else asyncio.create_task(work, name=name)
        step.add_done_callback(ended)
        return step

    def _is_full(self, waiting: _Waiting[AskT, AnswerT]) -> bool:
        """Whether as many wait as go together."""
        return waiting.items >= self._most_items or waiting.size >= _MOST_BYTES

    def _next(self, waiting: _Waiting[AskT, AnswerT]) -> list[_Part[AskT, AnswerT]]:
        parts: list[_Part[AskT, AnswerT]] = []
        items = size = 0
        while waiting.parts:
            part = waiting.parts[0]
            items += part.items
            size += part.size
            if parts and (items > self._most_items or size > _MOST_BYTES):
                break
            waiting.take()
            if part.answer.done() and not (self._outlives and part.answer.cancelled()):
                items -= part.items
                size -= part.size
            else:
                parts.append(part)
        return parts

    async def _step(
        self, key: KeyT, parts: list[_Part[AskT, AnswerT]], waiting: _Waiting[AskT, AnswerT] | None
    ) -> None:
        if waiting is not None:
            parts.extend(self._next(waiting))
        if parts:
            await self._take(key, parts)

    async def _take(self, key: KeyT, parts: list[_Part[AskT, AnswerT]]) -> None:
        now = asyncio.get_running_loop().time()
        least_s = max(_LEAST_SHARE * (max(part.ends_at for part in parts) - now), 0.0)
        for part in parts:
            if part.ends_at - now > least_s:
                part.is_in_step = True
            else:
                part.time_is_up()
        parts = [part for part in parts if part.is_in_step]
        if not parts:
            return
        budget_s = min(part.ends_at for part in parts) - now
        self._on_step(len(parts))
        try:
            answers = await self._run(key, [part.ask for part in parts], budget_s)
        except Exception as error:  # noqa: BLE001 - also a defect is told to those who asked, and not to who comes next
            for part in parts:
                if part.answer.done():
                    self._failed(key, part.ask, error)
                else:
                    part.fail(error)
        else:
            for part, answer in zip(parts, answers, strict=True):
                if part.answer.done():
                    self._unclaimed(key, part.ask, answer)
                else:
                    part.answer.set_result(answer)
