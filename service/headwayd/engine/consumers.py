"""Those of this process who want to lease: calls and streams, in one line per queue that all processes share.

The line itself is kept in the store, which says at every try who comes first. Here each waits until the store calls
this process, and whatever is given to someone who has gone meanwhile is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import structlog

from headwayd.domain.columns import leases_of
from headwayd.domain.errors import (
    HeadwayError,
    OutcomeUnknown,
    QueueDeleted,
    QueueDrained,
    QueueNotFound,
    StoreUnavailable,
    Unavailable,
)
from headwayd.domain.hints import PollHints, poll_hints
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.model import NO_ASKER, GetOrder, Policy
from headwayd.domain.places import LineNumbers
from headwayd.domain.standing import Standing, Waiter
from headwayd.engine import lines
from headwayd.engine.budgets import Budget
from headwayd.engine.busyness import Busyness
from headwayd.engine.coming_back import come_back
from headwayd.engine.leaving import ON_ITS_WAY_S, surely
from headwayd.engine.ports import GetAsk, GetStep, Store, Wait
from headwayd.engine.releasing import Releases
from headwayd.engine.tasks import Spawn

_NO_NUMBER = -(1 << 62)  # before all numbers that the store gives
_MOST_AT_ONCE = 500
MOST_TOGETHER = 1_000  # messages and settled leases of several who ask in one step
log = structlog.get_logger(__name__)

_T = TypeVar("_T")


class Kind(NamedTuple):
    """What must be the same for consumers to ask together."""

    queue: str
    consumer: str
    lease_ms: int
    generation: str  # in which they began to wait
    is_numbered: bool  # whether they have numbers in line


class Consumer:
    """One call or stream that wants to lease. Without a waiter's name it does not stand in line. `given` is what it
    gets; an order with an attempt id is repeated when its outcome is unknown. `place` is the name under which its place
    may be kept when its caller has gone; "" = it is not."""

    def __init__(self, order: GetOrder, waiter: Waiter, consumers: Consumers, budget_s: float) -> None:
        self.order = order
        self.waiter = waiter
        self.place = order.place
        self._consumers = consumers
        self.budget_s = budget_s
        self.last: GetStep | None = None
        self.unknown: OutcomeUnknown | None = None  # of a try that may have leased, until a later one is answered
        self._given: asyncio.Future[GetStep] | None = None

    @property
    def given(self) -> asyncio.Future[GetStep]:
        """What its wait, or its turn, brings. Most are served at once and have none."""
        if self._given is None:
            self._given = asyncio.get_running_loop().create_future()
        return self._given

    @property
    def rank(self) -> int:
        """The number in the line that all processes share. Whoever has none yet is tried first: that gives it one."""
        return self.waiter.number or _NO_NUMBER

    @property
    def hints(self) -> PollHints:
        """When its next poll shall come, by what it knows of its place."""
        polls, position = (self.last.polls, self.last.position) if self.last else (Policy(), 0)
        return poll_hints(polls, position, busy=self._consumers.busyness.value)

    @property
    def away_hints(self) -> PollHints | None:
        """How long its kept place is waited for when its call has broken off. A poller's, until its poll_max."""
        return replace(self.hints, poll_min_ms=0) if self.order.stands else None

    @property
    def leaves_more(self) -> bool:
        """See Waiter of `engine/lines.py`."""
        return self.last is None or not self.last.deliveries or self.last.left > 0

    @property
    def kind(self) -> Kind | None:
        """Those of a kind can ask together (see `Store.get_together`); None: it asks alone."""
        order, waiter = self.order, self.waiter
        is_bound = order.must_fit or order.room is not None
        if order.attempt_id or is_bound or order.stands or waiter.place or waiter.owns_leases:
            return None
        return Kind(order.queue, order.consumer, order.lease_ms, waiter.generation, waiter.number != 0)

    @property
    def ask(self) -> GetAsk:
        """What it asks the store for."""
        return GetAsk(self.order, self.waiter if self.waiter.name else None)

    async def step(self, budget_s: float) -> GetStep:
        """Tries once."""
        order, waiter = self.ask
        began = asyncio.get_running_loop().time()
        step = await self._consumers.store.get(order, waiter=waiter, budget_s=budget_s)
        self._consumers.busyness.note(asyncio.get_running_loop().time() - began)
        self.learn(step)
        return step

    def learn(self, step: GetStep) -> None:
        """What came of a try."""
        self.last, self.unknown = step, None
        self.waiter = self.waiter._replace(number=step.number, place="", generation=step.generation)
        self._consumers.note(self.order.queue, step)

    async def look(self, budget_s: float) -> None:
        """Learns where it stands now. Only the first in line try again, so its own last try may be long ago."""
        found = await self._consumers.store.footings(
            self.order.queue, [self.waiter], stand_again=False, budget_s=budget_s
        )
        if self.last is not None:
            position = found.footings[0].position or self.last.position  # 0: it was dropped, and is put back
            self.last = self.last._replace(polls=found.polls, position=position)

    async def attempt(self) -> bool:
        """See Waiter of `engine/lines.py`."""
        if self.given.done():
            return True
        try:
            step = await self.step(self.budget_s)
        except HeadwayError as error:
            return self.end_by(error)
        return self.end_with(step)

    def end_by(self, error: HeadwayError) -> bool:
        """Its try ended with an error: what `attempt` says to that."""
        if isinstance(error, StoreUnavailable):
            raise error
        if self.given.done():
            if isinstance(error, OutcomeUnknown):
                self._consumers.leave(self)
            return True
        if isinstance(error, OutcomeUnknown) and self.order.attempt_id:
            self.unknown = error
            raise error.as_undone() from error
        self.unknown = None
        self.fail(QueueDeleted.of(self.order.queue) if isinstance(error, QueueNotFound) else error)
        return True

    def end_with(self, step: GetStep) -> bool:
        """Its try ended with that: what `attempt` says to it."""
        if not self.given.done():
            if step.deliveries or step.wait is Wait.LARGE:
                self.given.set_result(step)
        elif step.deliveries:
            self._consumers.give_back(self, step)
        else:  # it has left, and the store may have heard of that before this try, which made it stand again
            self._consumers.leave(self)
        return self.given.done()

    def fail(self, error: HeadwayError) -> None:
        """Ends its wait with an error."""
        if not self.given.done():
            self.given.set_exception(error)

    def begin_anew(self, *, number: int, attempt_id: str) -> None:
        """Waits for its next turn, with the number that it has in line already, if any."""
        self.order = self.order._replace(attempt_id=attempt_id)
        self.waiter = self.waiter._replace(number=number)
        self._given = None


def _ended(consumer: Consumer, outcome: GetStep | HeadwayError) -> bool | BaseException:
    """What came of a try, as of `attempt_each`."""
    try:
        return consumer.end_with(outcome) if isinstance(outcome, GetStep) else consumer.end_by(outcome)
    except HeadwayError as error:
        return error


class Consumers:
    """All of them in this process."""

    def __init__(self, store: Store, spawn: Spawn, *, process: str, goes_together: bool = True) -> None:
        self.store = store
        self._spawn = spawn
        self._process = process
        self._numbers = itertools.count(1)
        self._drains: dict[str, bool] = {}  # by queue on which somebody waits: whether for a closed one's last
        self._restoring: set[str] = set()
        self._releases = Releases(store, spawn)
        self.busyness = Busyness()
        self.streams_at_work: set[object] = set()  # that do not wait in line
        self.lines = lines.Lines(
            self._arm,
            spawn,
            kind="consumers",
            attempt_all=self._attempt_all if goes_together else lines.attempt_each,
            on_end=self._line_ended,
            find_quiet=store.find_quiet,
            checks_a_round=store.quiet_at_once,
        )

    def enter(
        self, order: GetOrder, *, budget_s: float, waits: bool, owns: bool = False, keeps: bool = False
    ) -> Consumer:
        """One more. If it `waits` it stands in line as soon as a try gives it nothing."""
        name = f"{self._process}#{next(self._numbers)}" if waits else ""
        waiter = Waiter(name=name, place=order.place, owns_leases=owns, keeps_standing=keeps)
        if order.attempt_id and not owns:  # all its tries are one asker
            order = order._replace(asker=secrets.token_bytes(len(NO_ASKER)))
        return Consumer(order, waiter, self, budget_s)

    def join(self, consumer: Consumer, *, has_tried: bool = False) -> lines.Line:
        """It waits for its turn; `has_tried`: just now a try gave it nothing."""
        drains = consumer.last is not None and consumer.last.wait is Wait.DRAIN
        self._drains.setdefault(consumer.order.queue, drains)
        return self.lines.join(consumer.order.queue, consumer, has_tried=has_tried)

    async def first_try(self, consumer: Consumer, budget_s: float) -> GetStep:
        """One step that survives its caller: cancelled, it gives back what it is given, and the place. PlaceLost is
        raised when the place was looked for again, and in vain."""
        step = come_back(consumer.step, budget_s) if consumer.waiter.place else consumer.step(budget_s)
        task = asyncio.ensure_future(step)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._give_up_late(consumer, task), f"late:{consumer.order.queue}")
            raise
        except OutcomeUnknown:
            self.give_up(consumer)
            self.leave(consumer)
            raise

    async def ask_together(self, consumers: Sequence[Consumer], *, budget_s: float) -> Sequence[GetStep | QueueDrained]:
        """One step of the store for several of a kind; each has learned of its own. Raises what the store does."""
        began = asyncio.get_running_loop().time()
        steps = await self.store.get_together([one.ask for one in consumers], budget_s=budget_s)
        self.busyness.note(asyncio.get_running_loop().time() - began)
        for one, step in zip(consumers, steps, strict=True):
            if isinstance(step, GetStep):
                one.learn(step)
        return steps

    # -- what the line must know -------------------------------------------------------------------------------------

    def note(self, queue: str, step: GetStep) -> None:
        """Learns from a try what those who wait here wait for, and that the store has dropped them."""
        knew = self._drains.get(queue)
        if knew is not None:
            self._drains[queue] = step.wait is Wait.DRAIN
            if self._drains[queue] and not knew:
                self.lines.kick(queue)  # it may have armed for less
        if step.was_dropped:
            self.restore(queue)

    def restore(self, queue: str) -> None:
        """The store has dropped some who wait here, so they take their places anew."""
        if queue not in self._restoring:
            self._restoring.add(queue)
            self._spawn(self._stand_again(queue), f"stand:{queue}")

    async def _attempt_all(self, waiters: Sequence[lines.Waiter]) -> Sequence[bool | BaseException]:
        """Those of a kind who stand behind each other try together; the others each by itself, all at once."""
        parts: list[list[Consumer]] = []
        last, items = None, 0
        for one in waiters:
            assert isinstance(one, Consumer)  # nobody else stands here
            kind = one.kind
            items += one.order.max_messages
            if kind is None or kind != last or items > MOST_TOGETHER:
                parts.append([])
                last, items = kind, one.order.max_messages
            parts[-1].append(one)
        if len(parts) == 1:
            return await self._attempt_part(parts[0])
        return list(chain.from_iterable(await asyncio.gather(*map(self._attempt_part, parts))))

    async def _attempt_part(self, part: Sequence[Consumer]) -> Sequence[bool | BaseException]:
        trying = [one for one in part if not one.given.done()]
        if len(part) == 1 or not trying:
            return await lines.attempt_each(part)
        outcomes: Sequence[GetStep | HeadwayError]
        try:
            outcomes = await self.ask_together(trying, budget_s=STORE_BUDGET_S)
        except HeadwayError as error:
            outcomes = [error] * len(trying)
        ended = {one: _ended(one, outcome) for one, outcome in zip(trying, outcomes, strict=True)}
        return [ended.get(one, True) for one in part]

    def _arm(self, queue: str) -> Awaitable[bool]:
        # What keeps a closed queue from being drained ends every wait when it goes. Else who is next is called.
        return self.store.arm(queue, until_drained=self._drains.get(queue, False))

    def _line_ended(self, queue: str) -> None:
        self._drains.pop(queue, None)

    async def _stand_again(self, queue: str) -> None:
        """All who wait here take their places anew. Who left meanwhile leaves once more."""
        try:
            waiting = [one for one in self.lines.idle_on(queue) if isinstance(one, Consumer) and one.waiter.number]
            for start in range(0, len(waiting), _MOST_AT_ONCE):
                part = waiting[start : start + _MOST_AT_ONCE]
                waiters = [one.waiter for one in part]
                await self.store.footings(queue, waiters, stand_again=True, budget_s=STORE_BUDGET_S)
                still = set(self.lines.waiters_on(queue))
                for one, waiter in zip(part, waiters, strict=True):
                    if one not in still:  # it may have had its turn meanwhile: what that brought is its own
                        await self.store.stop_standing(queue, waiter.name, keeps_leases=True, budget_s=STORE_BUDGET_S)
        except HeadwayError as error:  # whoever is first tells of it again
            log.info("line.not_restored", queue=queue, reason=error.reason.name)
        finally:
            self._restoring.discard(queue)

    # -- giving up ----------------------------------------------------------------------------------------------------

    async def stop_standing(self, consumer: Consumer, *, budget_s: float) -> None:
        """Leaves the line. Raises what the store does; a queue that is no more, as QueueDeleted."""
        try:
            await self.store.stop_standing(consumer.order.queue, consumer.waiter.name, budget_s=budget_s)
        except QueueNotFound:
            raise QueueDeleted.of(consumer.order.queue) from None

    async def _give_up_late(self, consumer: Consumer, answer: asyncio.Future[GetStep]) -> None:
        """For one whose caller has gone while it tried. A task of its own, so that stopping waits for it."""
        await asyncio.wait({answer})
        if answer.cancelled() or answer.exception() is not None:
            if answer.cancelled() or isinstance(answer.exception(), OutcomeUnknown):
                self.give_up(consumer)
                self.leave(consumer)
        elif answer.result().deliveries:
            self.give_back(consumer, answer.result())
        else:
            self.give_up(consumer)

    async def keep_place(
        self, consumer: Consumer, place: str, *, budget_s: float, is_away: bool = False
    ) -> tuple[Standing, LineNumbers]:
        """Under this name, as long as a poll is waited for from where it stands now; `is_away`: its call has broken
        off."""
        budget = Budget(budget_s)
        order = consumer.order
        if order.stands and order.wait_ms:
            with contextlib.suppress(Unavailable):  # then by what is known of it
                await consumer.look(budget.left_s / 2)
        hints = consumer.away_hints if is_away else consumer.hints
        return await self.store.keep_place(order.queue, consumer.waiter, place, hints, budget_s=budget.left_s)

    async def shielded(self, consumer: Consumer, act: Awaitable[_T]) -> _T:
        """What ends or keeps its place, to its end even if the caller goes away; if that fails, the place is given
        up."""
        task = asyncio.ensure_future(act)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda ended: self._give_up_failed(consumer, ended))
            raise
        except Unavailable:
            self.give_up(consumer)
            raise

    def _give_up_failed(self, consumer: Consumer, ended: asyncio.Future[_T]) -> None:
        if not ended.cancelled() and isinstance(ended.exception(), Unavailable):
            self.give_up(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Sees to it that it stands there no more, though a try of its own may come to the store late."""
        if consumer.waiter.name:
            self._spawn(self._leave_late(consumer), f"leave:{consumer.order.queue}")

    async def _leave_late(self, consumer: Consumer) -> None:
        queue, name = consumer.order.queue, consumer.waiter.name
        await asyncio.sleep(ON_ITS_WAY_S)
        await surely(queue, lambda: self.store.stop_standing(queue, name, budget_s=STORE_BUDGET_S))

    def give_up_all(self, consumer: Consumer, *, has_left: bool) -> asyncio.Event:
        """The same, with whatever it was given last."""
        given = consumer.given
        if given.done() and not given.cancelled() and given.exception() is None:
            leases = leases_of(given.result().deliveries)
            return self.give_up(consumer, leases, has_left=has_left)
        given.cancel()
        return self.give_up(consumer, has_left=has_left)

    def give_back(self, consumer: Consumer, step: GetStep) -> None:
        """Releases, in the background, what was given to one who has gone."""
        self.give_up(consumer, leases_of(step.deliveries), has_left=not consumer.waiter.owns_leases)

    def give_up(
        self, consumer: Consumer, leases: Sequence[str] = (), *, has_left: bool = False, lapsed: Sequence[str] = ()
    ) -> asyncio.Event:
        """Ends, in the background, all that it stands for: its place in line, unless it `has_left`, and its leases; of
        those that it takes for `lapsed` what runs on and is its own. A place without leases is kept under its name for
        as long as the policy's grace says. What is returned is set when all of that is done."""
        has_left = has_left or not consumer.waiter.name
        is_done = asyncio.Event()
        if has_left and not leases and not lapsed:
            is_done.set()
        else:
            giving_up = self._give_up(consumer, leases, has_left, lapsed, is_done)
            self._spawn(giving_up, f"leave:{consumer.order.queue}")
        return is_done

    async def _give_up(
        self, consumer: Consumer, leases: Sequence[str], has_left: bool, lapsed: Sequence[str], is_done: asyncio.Event
    ) -> None:
        queue, waiter, place = consumer.order.queue, consumer.waiter, consumer.place
        # The leases first: whatever the store then still knows of this waiter is what nobody here was told of, and is
        # searched for among all leases of the queue.
        claim = b"" if waiter.owns_leases else consumer.order.claim
        await self._releases.release(queue, leases, owned=waiter.owns_leases, claim=claim)
        await self._releases.release(queue, lapsed, owned=True, owner=waiter.name)
        if not has_left and place and not leases:
            keep = partial(self.keep_place, consumer, place, budget_s=STORE_BUDGET_S, is_away=True)
            await surely(queue, keep, until_then="place.not_kept")
        elif not has_left:
            await surely(queue, lambda: self.store.stop_standing(queue, waiter.name, budget_s=STORE_BUDGET_S))
        is_done.set()
