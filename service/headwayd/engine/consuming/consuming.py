"""One consumer's stream, from its start to its end. Whatever ends it, place and leases are given up.

It does one thing at a time: what the consumer asked for, in order; then, as far as the credit goes, the next messages.
Acks and the leasing of what comes next are one step of the store. If there is nothing to lease the stream stands in the
consumer line like everybody, and settles on while it stands there. Without room for anything it only looks whether the
queue is still there and not drained: when it starts, and when a settle may have been the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headwayd.domain.columns import FirstAcks, last_expiry_ms, leases_of
from headwayd.domain.consuming import AckOrder, ConsumeOrder, ConsumeStep, Credit, ExtendOrder, ToldConsumer
from headwayd.domain.errors import (
    OutcomeUnknown,
    QueueDeleted,
    QueueDrained,
    QueueNotFound,
    RoleInUse,
    StoreUnavailable,
    Unavailable,
)
from headwayd.domain.limits import Limits
from headwayd.domain.model import DelayOrder, GetOrder, Settled, Settlement
from headwayd.domain.standing import Waiter
from headwayd.engine.ahead import begun
from headwayd.engine.consumers import Consumers
from headwayd.engine.consuming.inbox import Inbox
from headwayd.engine.consuming.outstanding import Outstanding, Room
from headwayd.engine.consuming.stride import Stride
from headwayd.engine.eager import eager_task
from headwayd.engine.leaving import surely
from headwayd.engine.lines import Line
from headwayd.engine.ports import GetStep, Wait
from headwayd.engine.roles import until_free
from headwayd.engine.standing.follower import Follower
from headwayd.engine.standing.stance import Stance
from headwayd.engine.standing.standing import Standing
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.telling import TRUE_FOR_S

# A place is told when the stream has stood there for so long: on a busy queue it would be nothing but noise.
_TELL_AFTER_S = 0.05
# A step of a stream that is alone is for such a part of its credit, unless that is so few messages that the step itself
# is most of what they cost.
_SHARES, _LEAST_SHARE = 2, 100
_ROLES_S = 0.1  # for so long a step waits for foreign clients; all that come behind it wait, too

Answer = TypeVar("Answer")


class Consuming:
    """One stream. `run` it once."""

    def __init__(
        self,
        order: ConsumeOrder,
        steps: AsyncIterator[ConsumeStep],
        *,
        consumers: Consumers,
        standing: Standing,
        spawn: Spawn,
        limits: Limits,
        budget_s: float,
    ) -> None:
        self._queue = order.queue
        self._consumers = consumers
        self._standing = standing
        self._spawn = spawn
        self._limits = limits
        self._budget_s = budget_s
        self._loop = asyncio.get_running_loop()
        asked = GetOrder(queue=order.queue, lease_ms=order.lease_ms, consumer=order.consumer)
        self._consumer = consumers.enter(asked, budget_s=budget_s, waits=True, owns=True)
        self._stance = Stance(self._consumer, is_quiet=True)
        self._held = Outstanding(order.credit)
        self._stride = Stride(most=limits.max_batch_messages, budget_s=budget_s)
        self._inbox = Inbox(steps, self._stance.stir)
        self._line: Line | None = None  # where it waits, if it does
        self._follower: Follower | None = None  # who tells its place there
        self._tell_at = float("inf")
        self._told_known_at = float("-inf")
        self._is_begun = False  # the store has answered once
        self._is_to_look = True  # unless it leases: whether there is a queue, and anything that may come of it
        self._is_unsure = False  # it may have leased something without an answer
        self._unheard = ""  # the attempt of a wait that it left, whose answer may have been lost
        self._may_own_more = False  # than it was told of: of a lost answer its credit then took less, or nothing
        self._too_large_at = -1  # `freed` when the next message did not fit into what was left of the credit
        self._clock_ahead_ms = 0.0  # the store's clock before this process's, at most
        self._under_way: asyncio.Future[Any] | None = None

    async def run(self) -> AsyncGenerator[ToldConsumer, None]:
        """Tells what there is to tell, until the consumer has said its last, or the queue is drained."""
        ahead: asyncio.Task[ToldConsumer | None] | None = None
        self._consumers.streams_at_work.add(self)
        try:
            told = await self._next()
            while told is not None:
                ahead = await self._begin_ahead()
                yield told
                told = await ahead if ahead is not None else None
                if told is None:
                    told = await self._next()
        except QueueDrained:
            yield ToldConsumer(is_drained=True)
        finally:
            if ahead is not None:
                ahead.cancel()
            self._consumers.streams_at_work.discard(self)
            self._give_up()

    async def _next(self) -> ToldConsumer | None:
        """What is to be told next; None if that was all."""
        while True:
            told: ToldConsumer | None
            if (step := self._turn()) is not None:
                told = self._leased(step, ())
            elif (work := self._work()) is not None:
                told = await work
            elif self._inbox.is_over:
                return None
            elif self._line is not None and self._consumer.given.done():
                self._consumer.given.result()  # an error: it was no turn
                told = None
            elif (told := self._place()) is None:
                await self._news()
            if told is not None:
                return told

    def _work(self) -> Coroutine[Any, Any, ToldConsumer | None] | None:
        """What there is to do with the store, if there is anything."""
        self._held.lapse(self._loop.time())
        if (asked := self._inbox.take()) is not None:
            return self._do(asked)
        if self._line is not None or (self._inbox.is_read and self._is_begun):
            return None
        if not self._inbox.is_read and (room := self._room()) is not None:
            return self._lease(room)
        return self._look() if self._is_to_look else None

    async def _begin_ahead(self) -> asyncio.Task[ToldConsumer | None] | None:
        """While one thing is told the store does the next. Not while it waits in line: its place would be told later
        than it was true."""
        if self._line is not None or self._inbox.is_read or (work := self._work()) is None:
            return None
        return await begun(work, f"ahead:{self._queue}")

    async def _news(self) -> None:
        """Waits until something comes, is given, or is over, or it is time to tell the place."""
        at = self._held.lapses_at if self._line is None else self._tell_at
        try:
            async with asyncio.timeout_at(at if at < float("inf") else None):
                await self._stance.news()
        except TimeoutError:
            pass

    # -- leasing ------------------------------------------------------------------------------------------------------

    def _room(self, ending: Sequence[str] = ()) -> Room | None:
        if not ending and self._held.freed == self._too_large_at:
            return None
        return self._held.room(ending)

    @property
    def _most_at_once(self) -> int:
        """Messages and acks of one step. A stream that is alone keeps the store busy with one part of its credit while
        the consumer has the other; of several each has the store while the others do not need it."""
        if len(self._consumers.streams_at_work) > 1:
            return self._stride.messages
        return min(max(self._held.credit.messages // _SHARES, _LEAST_SHARE), self._stride.messages)

    def _asked_for(self, room: Room, ack: Sequence[str], attempt_id: str) -> GetOrder:
        most = self._limits.max_response_bytes
        return self._consumer.order._replace(
            max_messages=min(room.messages, self._most_at_once),
            max_bytes=min(room.bytes or most, most),
            must_fit=room.is_strict,
            ack=ack,
            attempt_id=attempt_id,
        )

    async def _lease(self, room: Room, ack: Sequence[str] = ()) -> ToldConsumer | None:
        """Tries once; if nothing can be leased the stream waits for its turn from then on."""
        consumer = self._consumer
        consumer.begin_anew(number=0, attempt_id="")
        consumer.order = self._asked_for(room, ack, self._unheard or secrets.token_hex(16))
        asked_at = self._loop.time()
        try:
            step = await self._call(consumer.step(self._budget_s))
        except (StoreUnavailable, OutcomeUnknown) as error:
            self._stride.note(self._budget_s)
            if ack or not self._is_begun:
                self._is_unsure = isinstance(error, OutcomeUnknown)
                raise
            self._wait_in_line(has_tried=False)  # which goes on trying, by the same attempt id
            return None
        except (QueueNotFound, QueueDeleted) as error:
            if ack:  # that is told first; the next try tells of the queue
                return await self._settle(self._consumers.store.ack(self._queue, ack, budget_s=self._budget_s))
            raise self._absence(error) from None
        self._stride.note(self._loop.time() - asked_at)
        self._is_begun = True
        return self._leased(step, ack)

    async def _look(self) -> None:
        """Learns what a try would, without one: no queue, another in its place, drained. From the first look on it is
        the queue of that life which this stream leases from."""
        self._is_to_look = False
        consumer = self._consumer
        order = consumer.order._replace(max_messages=0, ack=(), attempt_id="")
        nobody = Waiter(name="", generation=consumer.waiter.generation)
        try:
            step = await self._call(self._consumers.store.get(order, waiter=nobody, budget_s=self._budget_s))
        except (QueueNotFound, QueueDeleted) as error:
            raise self._absence(error) from None
        self._is_begun = True
        consumer.waiter = consumer.waiter._replace(generation=step.generation)

    def _absence(self, error: QueueNotFound | QueueDeleted) -> QueueNotFound | QueueDeleted:
        """What the stream ends with where there is no queue: one that it has seen was deleted."""
        return QueueDeleted.of(self._queue) if self._is_begun else error

    def _leased(self, step: GetStep, ack: Sequence[str]) -> ToldConsumer | None:
        """Takes over what a step gave."""
        now = self._loop.time()
        self._clock_ahead_ms = step.at_ms - now * 1_000
        self._unheard, self._is_to_look = "", False
        self._note(step.settled)
        if step.deliveries:
            last_ms = last_expiry_ms(step.deliveries)
            self._held.add(step.deliveries, now + (last_ms - step.at_ms) / 1_000)
        elif step.wait is Wait.LARGE:
            self._too_large_at = self._held.freed
        elif step.wait is not Wait.NOTHING:  # nothing to wait for: drained, which the next try tells
            self._wait_in_line(has_tried=True)
        if not step.deliveries and not ack:
            return None
        return ToldConsumer(deliveries=step.deliveries, settled=step.settled, held=len(self._held))

    def _turn(self) -> GetStep | None:
        """What its turn in line has brought; then it stands there no longer."""
        given = self._consumer.given
        if self._line is None or not given.done() or given.exception() is not None:
            return None
        step = given.result()
        self._stop_waiting()
        return step

    def _wait_in_line(self, *, has_tried: bool) -> None:
        consumer = self._consumer
        consumer.order = consumer.order._replace(ack=())
        self._consumers.streams_at_work.discard(self)
        self._line = self._consumers.join(consumer, has_tried=has_tried)
        self._told_known_at = self._loop.time()  # what was known before was true of another wait
        self._tell_at = self._told_known_at + _TELL_AFTER_S
        consumer.given.add_done_callback(lambda _: self._stance.stir())

    def _stop_waiting(self) -> None:
        """It has its turn, or has left the line."""
        self._consumers.streams_at_work.add(self)
        if self._line is not None:
            self._line.forget(self._consumer)
        self._line, self._tell_at = None, float("inf")
        if self._follower is not None:
            self._follower.leave(self._stance)
            self._follower = None
            self._stance.footing, self._stance.told_position = None, 0
        self._consumer.begin_anew(number=0, attempt_id="")

    async def _ask_for_less(self) -> None:
        """There may be less room than when it began to wait: no turn may bring more than there is."""
        if self._line is None:
            return
        consumer = self._consumer
        await self._line.leave(consumer)
        if consumer.given.done():
            return
        self._may_own_more = True
        room = self._held.room()
        if room is not None:
            consumer.order = self._asked_for(room, (), consumer.order.attempt_id)
            self._line = self._consumers.join(consumer)
            return
        self._unheard = consumer.order.attempt_id
        self._stop_waiting()
        try:
            await self._call(self._leave_line())
        except Unavailable:
            self._spawn(surely(self._queue, self._leave_line), f"leave:{self._queue}")

    async def _leave_line(self) -> None:
        """Gives up its place, and nothing of what it has leased."""
        name = self._consumer.waiter.name
        with contextlib.suppress(QueueNotFound, QueueDeleted):  # the next try tells of it
            await self._consumers.store.stop_standing(self._queue, name, keeps_leases=True, budget_s=self._budget_s)

    # -- what the consumer asks for -----------------------------------------------------------------------------------

    async def _do(self, asked: ConsumeStep) -> ToldConsumer | None:
        store = self._consumers.store
        match asked:
            case Credit():
                self._held.give_credit(asked)
                await self._ask_for_less()
                return None
            case AckOrder() if asked.result:
                work = store.ack(self._queue, asked.leases, result=asked.result, budget_s=self._budget_s)
            case AckOrder():
                asked = self._inbox.take_more(asked, self._most_at_once)
                room = self._room(asked.leases)
                if self._line is None and room is not None and not self._inbox.is_read:
                    return await self._lease(room, asked.leases)
                work = store.ack(self._queue, asked.leases, budget_s=self._budget_s)
            case ExtendOrder():
                work = store.extend(
                    self._queue,
                    asked.leases,
                    asked.lease_ms,
                    progress=asked.progress,
                    owner=self._consumer.waiter.name,
                    budget_s=self._budget_s,
                )
            case DelayOrder() if asked.message_ids:
                work = self._postpone(asked)
            case _:
                work = store.delay(asked, budget_s=self._budget_s)
        return await self._settle(work)

    async def _postpone(self, order: DelayOrder) -> Sequence[Settlement]:
        """What is to be postponed by id is STALE where foreign clients go on holding both roles: one of them may just
        have taken it. The leases are given back all the same."""
        store, budget_s = self._consumers.store, self._budget_s
        try:
            return await until_free(
                lambda left_s: store.delay(order, budget_s=left_s),
                _ROLES_S,
                budget_s=budget_s,
                is_draining=lambda: False,
            )
        except RoleInUse:
            settled: Sequence[Settlement] = ()
            if order.leases:
                settled = await store.delay(replace(order, message_ids=()), budget_s=budget_s)
            return [*settled, *(Settlement("", Settled.STALE, id=name) for name in order.message_ids)]

    async def _settle(self, work: Coroutine[Any, Any, Sequence[Settlement]]) -> ToldConsumer:
        had_taken_up = self._held.taken_up_count
        settled = await self._call(work)
        self._note(settled)
        if self._held.taken_up_count > had_taken_up:
            await self._ask_for_less()
        elif self._line is None:
            self._is_to_look = self._is_to_look or self._may_be_the_last(settled)
        elif (room := self._held.room()) is not None:
            self._consumer.order = self._asked_for(room, (), self._consumer.order.attempt_id)
        return ToldConsumer(settled=settled, held=len(self._held))

    def _may_be_the_last(self, settled: Sequence[Settlement]) -> bool:
        """Whether nothing is left to settle by which it would learn later that there is no more, or it is told now."""
        return not self._held or (
            type(settled) is not FirstAcks and any(one.settled is Settled.GONE for one in settled)
        )

    def _note(self, settled: Sequence[Settlement]) -> None:
        if type(settled) is FirstAcks:
            self._held.end_all(settled.leases)
            return
        for one in settled:
            if one.settled is Settled.EXTENDED and one.available_at_ms is not None:
                self._held.extend(one.lease, (one.available_at_ms - self._clock_ahead_ms) / 1_000)
            else:  # whatever the answer, it is no lease of this stream any more
                self._held.end(one.lease)

    # -- its place ----------------------------------------------------------------------------------------------------

    def _place(self) -> ToldConsumer | None:
        """Its place in line, if it is time to tell it."""
        if self._line is None:
            return None
        stance = self._stance
        if self._follower is None:
            if self._loop.time() >= self._tell_at:
                self._tell_at = float("inf")
                self._follower = self._standing.follower(self._queue)
                self._follower.join(stance)
                self._follower.stand(stance)
                self._follower.ask(stance)
            return None
        footing, numbers = stance.footing, stance.numbers
        if footing is None or numbers is None or not footing.position or stance.known_at <= self._told_known_at:
            return None
        self._told_known_at = stance.known_at
        now = self._loop.time()
        if not stance.is_due(now):
            return None
        if now - stance.known_at > TRUE_FOR_S:
            self._follower.ask(stance)
            return None
        told = self._standing.told(stance, numbers.at_ms, footing.position, numbers.consumers_waiting, numbers.limit)
        self._follower.told(stance)
        return ToldConsumer(standing=told.standing, held=len(self._held))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """A step of the store, which runs to its end also if the stream ends first."""
        under_way: asyncio.Task[Answer] = eager_task(work, name=f"step:{self._queue}")
        self._under_way = under_way
        answer = await asyncio.shield(under_way)
        self._under_way = None
        return answer

    def _give_up(self) -> None:
        """Ends, in the background, all that it stands for; after the step under way, which may be settling."""
        self._inbox.close()
        consumer, leases = self._consumer, self._held.leases
        given, may_own_more = consumer.given, self._may_own_more or self._held.has_forgotten
        has_left = self._line is None and not may_own_more
        if self._line is not None:
            if given.done() and not given.cancelled() and given.exception() is None:
                leases += leases_of(given.result().deliveries)
            given.cancel()
            self._line.forget(consumer)
        if self._follower is not None:
            self._follower.leave(self._stance)
        if self._is_unsure:
            self._consumers.leave(consumer)
        under_way = self._under_way  # it may be done, and its answer not taken yet
        if under_way is None:
            self._consumers.give_up(consumer, leases, has_left=has_left, lapsed=self._held.lapsed)
        else:
            self._spawn(self._give_up_late(under_way, leases), f"late:{self._queue}")

    async def _give_up_late(self, under_way: asyncio.Future[Any], leases: Sequence[str]) -> None:
        await asyncio.wait({under_way})
        late: Sequence[str] = ()
        if under_way.cancelled() or isinstance(under_way.exception(), OutcomeUnknown):
            self._consumers.leave(self._consumer)
        elif under_way.exception() is None and isinstance(under_way.result(), GetStep):
            late = leases_of(under_way.result().deliveries)
        self._consumers.give_up(self._consumer, [*leases, *late], lapsed=self._held.lapsed)
