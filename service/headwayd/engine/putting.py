"""Put: what fits at once, the rest in the producer line until there is room, the queue goes, or time is up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from headwayd.domain.bare import BareMessages, all_of, payload_bytes
from headwayd.domain.blocked import BlockedPut
from headwayd.domain.errors import (
    HeadwayError,
    OutcomeUnknown,
    QueueDeleted,
    QueueFull,
    QueueNotFound,
    Reason,
    RoleInUse,
    StoreUnavailable,
)
from headwayd.domain.joined import errors_of
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.model import NO_ROOM, NewMessage, OnDuplicate, PutCode, PutOrder, PutOutcome, refused
from headwayd.domain.waiting import wait_for
from headwayd.engine.budgets import Budget
from headwayd.engine.coalescing import Coalescer, shared_out
from headwayd.engine.leaving import ON_ITS_WAY_S, surely
from headwayd.engine.lines import Line, Lines
from headwayd.engine.ports import PutStep, Store, Wait
from headwayd.engine.tasks import Spawn
from headwayd.engine.waking import Wake

_MOST_AT_ONCE = 500
_MOST_TOGETHER = 1_000  # messages of several Puts in one step
_ACCEPTED = frozenset({PutCode.QUEUED, PutCode.DELAYED, PutCode.KEPT, PutCode.REPLACED})
log = structlog.get_logger(__name__)


class _Waiter:
    """One call in the producer line. `name` is its name there, empty for a call that does not wait."""

    def __init__(self, order: PutOrder, store: Store, budget_s: float, name: str) -> None:
        self._order = order
        self._store = store
        self._budget_s = budget_s
        self._line_ticket = 0
        self._generation = ""
        self.name = name
        self.rest: Sequence[NewMessage] = order.messages
        self.outcomes: list[PutOutcome] = []
        self.last: PutStep | None = None
        self.trouble: StoreUnavailable | None = None
        self.why_not: HeadwayError | None = None  # waited as long as it was to
        self.error: HeadwayError | None = None  # that ended its wait, or its last try
        self.leaves_again = False  # when its wait is over, because it was put back in line
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def rank(self) -> int:
        """The number in the line that all processes share."""
        return self._line_ticket

    @property
    def has_accepted(self) -> bool:
        return any(outcome.code in _ACCEPTED for outcome in self.outcomes)

    @property
    def cut_by(self) -> HeadwayError | None:
        """What ended its last try between two steps of the store: then it may stand in line, with nothing left."""
        return self.outcomes[-1].error if self.last is not None and self.last.wait is Wait.MORE else None

    @property
    def blocked(self) -> BlockedPut:
        """As it stands in that line."""
        return BlockedPut(
            waiter=self.name,
            number=self._line_ticket,
            producer=self._order.producer,
            generation=self._generation,
        )

    @property
    def leaves_more(self) -> bool:
        """See Waiter of `engine/lines.py`."""
        return True  # room for the next is found by trying

    async def step(self) -> bool:
        """Puts what can be put. True if nothing is left."""
        step = await self._store.put(
            self._order.queue,
            self.rest,
            producer=self._order.producer,
            waiter=self.name,
            line_ticket=self._line_ticket,
            on_duplicate=self._order.on_duplicate,
            all_or_nothing=self._order.all_or_nothing,
            generation=self._generation,
            budget_s=self._budget_s,
        )
        return self.note(step, step.outcomes)

    def note(self, step: PutStep, outcomes: Sequence[PutOutcome]) -> bool:
        """So far a step of the store came, with these outcomes for it. True if nothing is left."""
        self.last = step
        self._line_ticket = step.line_ticket
        self._generation = step.generation
        self.outcomes.extend(outcomes)
        if self._order.on_outcomes is not None:
            self._order.on_outcomes(self.rest[: len(outcomes)], outcomes)
        self.rest = self.rest[len(outcomes) :]
        return not self.rest

    async def attempt(self) -> bool:
        if self.done.done():
            return True
        try:
            is_all_done = await self.step()
        except StoreUnavailable as error:
            self.trouble = error
            raise
        except HeadwayError as error:
            if isinstance(error, QueueNotFound):
                error = QueueDeleted.of(self._order.queue)
            self.error = error  # whatever ended its wait meanwhile
            self._end()
            return True
        self.trouble = None
        if is_all_done:
            self._end()
        return self.done.done()

    @property
    def found_role_taken(self) -> bool:
        """Whether that is why it was not served when it last tried."""
        is_over = self.done.done() or self.why_not is not None or self.trouble is not None
        return not is_over and self.last is not None and self.last.wait is Wait.ROLE

    async def look(self, budget_s: float) -> bool:
        """Tries a last time, within `budget_s`."""
        self._budget_s = budget_s
        return await self.attempt()

    def fail(self, error: HeadwayError) -> None:
        if not self.done.done():
            self.error = error
            self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def cut_off(self, error: HeadwayError) -> None:
        """The rest was not accepted, for one reason."""
        self.outcomes.extend(refused(self.rest, error))
        self.rest = ()


# Of a step: all of it, what befell the messages of one Put, and whether nobody looked at those, because one of another
# Put before them found no room.
_Share = tuple[PutStep, Sequence[PutOutcome], bool]
_Kind = tuple[str, OnDuplicate, str]  # what must be the same for Puts to go together: queue, on_duplicate, producer


def _size_if_together(order: PutOrder) -> int | None:
    """The bytes of its payloads; None if something in it could refuse the Puts that it goes with."""
    if order.all_or_nothing:
        return None
    if type(order.messages) is BareMessages:
        return payload_bytes(order.messages)
    size = 0
    for message in order.messages:
        if message.not_before_at_ms:
            return None
        size += len(message.payload)
    return size


def _may_need_no_room(messages: Sequence[NewMessage]) -> bool:
    """Whether one of them may be delayed, or its id be known."""
    return any(message.id or message.delay_ms for message in messages)


def _why_it_waits(queue: str, waiter: _Waiter) -> HeadwayError:
    """What kept the rest from being accepted when time was up."""
    if waiter.why_not is not None:
        return waiter.why_not
    if waiter.trouble is not None:
        return waiter.trouble
    if waiter.last is not None and waiter.last.wait is Wait.ROLE:
        return RoleInUse.of(queue, role="producer", holder=waiter.last.holder)
    bound = waiter.last.bound if waiter.last else 0
    return QueueFull(f"queue {queue!r} is full", metadata={"queue": queue, "bound": str(bound)})


class Putting:
    """All Puts of this process. `on_refused` is told of which queue how many messages were refused, and why."""

    def __init__(
        self,
        store: Store,
        lines: Lines,
        spawn: Spawn,
        *,
        process: str,
        goes_together: bool = True,
        on_step: Callable[[int], None] | None = None,
        on_refused: Callable[[str, Reason, int], None] | None = None,
    ) -> None:
        self._store = store
        self._lines = lines
        self._spawn = spawn
        self._on_refused = on_refused
        self._process = process
        self._numbers = itertools.count(1)
        self._together: Coalescer[_Kind, Sequence[NewMessage], _Share] = Coalescer(
            self._put_together,
            spawn,
            name="put",
            most_items=_MOST_TOGETHER,
            is_off=not goes_together,
            on_step=on_step,
        )

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """See Engine.put."""
        outcomes = await self.put_each(order, budget_s=budget_s)
        first = outcomes[0].error
        if first is not None and all(one.error is not None and one.error.reason is first.reason for one in outcomes):
            raise first
        return outcomes

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """The same, but what befell every message is told of each."""
        try:
            outcomes = await self._put_each(order, budget_s=budget_s)
        except HeadwayError as error:
            self.note_refused(order, error, len(order.messages))
            raise
        for why in errors_of(outcomes):
            self.note_refused(order, why, 1)
        return outcomes

    def note_refused(self, order: PutOrder, error: HeadwayError, number: int) -> None:
        """So many of its messages were refused, unless they come again and only found no room."""
        if self._on_refused is not None and not (order.comes_again and error.reason in NO_ROOM):
            self._on_refused(order.queue, error.reason, number)

    async def _put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        share = None
        if (size := _size_if_together(order)) is not None:
            kind = (order.queue, order.on_duplicate, order.producer)
            items = len(order.messages)
            budget = None if type(order.messages) is BareMessages else Budget(budget_s)
            share = await self._together.ask(kind, order.messages, items=items, size=size, budget_s=budget_s)
            if budget is not None and share[2] and _may_need_no_room(order.messages):
                # By itself, and not yet in line: there the one that found no room comes first.
                [share] = await self._put_together(kind, [order.messages], budget.left_s)
            if len(share[1]) == items:
                if order.on_outcomes is not None:
                    order.on_outcomes(order.messages, share[1])
                return share[1]
        name = f"{self._process}#{next(self._numbers)}" if order.wait_ms else ""
        waiter = _Waiter(order, self._store, budget_s, name)
        is_all_done = await self._first_try(order, waiter) if share is None else waiter.note(*share[:2])
        if not is_all_done and order.wait_ms:
            await self._wait(order, waiter)
        if waiter.cut_by is not None:
            self._leave(order.queue, waiter)
        if waiter.rest:
            waiter.cut_off(_why_it_waits(order.queue, waiter))
        return waiter.outcomes

    async def _first_try(self, order: PutOrder, waiter: _Waiter) -> bool:
        """True if it did all. If not, what waits stands in line."""
        first = asyncio.ensure_future(waiter.step())
        try:
            return await asyncio.shield(first)
        except asyncio.CancelledError:
            first.add_done_callback(lambda ended: self._leave_late(order.queue, waiter, ended))
            raise
        except OutcomeUnknown as error:
            self._leave(order.queue, waiter, error)
            raise

    async def _put_together(
        self, kind: _Kind, batches: Sequence[Sequence[NewMessage]], budget_s: float
    ) -> Sequence[_Share]:
        """Several Puts as one step, one after the other: where there is no room for the next message of one, those
        behind it are not looked at."""
        queue, on_duplicate, producer = kind
        step = await self._store.put(
            queue,
            all_of(batches),
            producer=producer,
            waiter="",
            line_ticket=0,
            on_duplicate=on_duplicate,
            all_or_nothing=False,
            budget_s=budget_s,
        )
        is_full, dealt_with = step.wait is Wait.ROOM, len(step.outcomes)
        sizes = [len(batch) for batch in batches]
        starts = itertools.accumulate(sizes, initial=0)
        return [
            (step, outcomes, is_full and start > dealt_with)
            for outcomes, start in zip(shared_out(step.outcomes, sizes), starts, strict=False)
        ]

    async def _wait(self, order: PutOrder, waiter: _Waiter) -> None:
        line = self._lines.join(order.queue, waiter)
        try:
            waiter.why_not = await wait_for(waiter.done, order.cut_off, timeout_s=order.wait_ms / 1000)
            if waiter.rest:
                await line.leave(waiter)  # whatever ended the wait, what it is just trying may be done all the same
            if waiter.found_role_taken:
                await self._look_again(order, waiter)
        except asyncio.CancelledError:
            line.forget(waiter)
            waiter.done.cancel()
            self._spawn(self._leave_behind(line, order.queue, waiter), f"leave:{order.queue}")
            raise
        if not waiter.done.done():
            waiter.done.cancel()
            self._leave(order.queue, waiter)
            return
        if waiter.rest and waiter.error is not None:
            self._end_by(waiter.error, order, waiter)

    def _end_by(self, error: HeadwayError, order: PutOrder, waiter: _Waiter) -> None:
        """Its wait ended with that before all was put."""
        if isinstance(error, QueueDeleted):
            raise error
        self._leave(order.queue, waiter, error)
        if not waiter.has_accepted:
            raise error
        waiter.cut_off(error)

    async def _look_again(self, order: PutOrder, waiter: _Waiter) -> None:
        """Tries once more before it is told that a role is taken: it may have been free for long, because only who is
        first in line tries again."""
        look = asyncio.ensure_future(waiter.look(order.look_ms / 1000))
        try:
            await asyncio.shield(look)
        except asyncio.CancelledError:
            look.add_done_callback(lambda _: self._leave(order.queue, waiter, waiter.error))
            raise
        except StoreUnavailable:  # which the waiter has noted
            pass

    # -- leaving the line --------------------------------------------------------------------------------------------

    def _leave_late(self, queue: str, waiter: _Waiter, ended: asyncio.Future[bool]) -> None:
        if ended.cancelled():
            return
        error = ended.exception()
        if isinstance(error, OutcomeUnknown) or (error is None and (waiter.cut_by or not ended.result())):
            self._leave(queue, waiter, error)

    async def _leave_behind(self, line: Line, queue: str, waiter: _Waiter) -> None:
        """Leaves behind the try that may be under way: where that finds no room it stands there once more."""
        await line.leave(waiter)
        self._leave(queue, waiter, waiter.error)

    def _leave(self, queue: str, waiter: _Waiter, error: BaseException | None = None) -> None:
        """Sees to it that it stands there no more, though its last try, if nothing is known of that, may come late."""
        if waiter.name:
            is_on_its_way = isinstance(error or waiter.cut_by, OutcomeUnknown)
            self._spawn(self._leave_line(queue, waiter.name, ON_ITS_WAY_S if is_on_its_way else 0), f"leave:{queue}")

    async def _leave_line(self, queue: str, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await surely(queue, lambda: self._store.leave_line(queue, name, budget_s=STORE_BUDGET_S))

    # -- coming back -------------------------------------------------------------------------------------------------

    def restores(self) -> Iterator[Wake]:
        """The store may have dropped those who wait here, because it heard nothing of this process: by each of these
        those of one queue take their places anew, with the numbers that they had."""
        return (partial(self._restore, queue) for queue in self._lines.queues)

    def _restore(self, queue: str) -> None:
        self._spawn(self._stand_again(queue), f"stand:{queue}")

    async def _stand_again(self, queue: str) -> None:
        waiting = [one for one in self._lines.waiters_on(queue) if isinstance(one, _Waiter) and one.rank]
        for start in range(0, len(waiting), _MOST_AT_ONCE):
            part = waiting[start : start + _MOST_AT_ONCE]
            try:
                await self._store.blocked(queue, (), again=[one.blocked for one in part], budget_s=STORE_BUDGET_S)
            except HeadwayError as error:  # whoever comes to be tried takes its place by that
                log.info("line.not_restored", queue=queue, reason=error.reason.name)
                return
            for one in part:  # it may have been served before it was put back: when its wait is over it leaves again
                if one.done.done():
                    self._leave(queue, one)
                elif not one.leaves_again:
                    one.leaves_again = True
                    one.done.add_done_callback(lambda _, name=one: self._leave(queue, name))  # type: ignore[misc]
