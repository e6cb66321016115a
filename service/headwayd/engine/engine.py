"""The rules of the queue service, between the edge that speaks a protocol and the store that keeps the queues.

Knows neither gRPC nor Redis nor the wall clock. What is one atomic step is the store's; what waits, repeats, bounds
and gives up is here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial

from headwayd.domain import names
from headwayd.domain.access import Used
from headwayd.domain.blocked import ToldProducer
from headwayd.domain.consuming import ConsumeOrder, ConsumeStep, ToldConsumer
from headwayd.domain.errors import HeadwayError, RoleInUse, ShuttingDown, StoreUnavailable
from headwayd.domain.limits import Limits
from headwayd.domain.model import (
    Checked,
    DeadPage,
    DelayOrder,
    GetOrder,
    Peeked,
    Policy,
    Purged,
    PutOrder,
    PutOutcome,
    Queue,
    RedriveOrder,
    RedriveProgress,
    Repaired,
    ServerFacts,
    Settlement,
    WithdrawOutcome,
)
from headwayd.domain.namespaces import DEFAULT, qualifier
from headwayd.domain.places import LeasedMessage, Progress
from headwayd.domain.standing import GetOutcome, StandOrder, ToldStander
from headwayd.domain.watching import Told, ToldQueue, WatchOrder
from headwayd.engine.absence import Absence
from headwayd.engine.budgets import Budget
from headwayd.engine.consumers import Consumers
from headwayd.engine.consuming.consuming import Consuming
from headwayd.engine.counting.counted_store import counted
from headwayd.engine.counting.counts import Counts
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.forecasts import Forecasts
from headwayd.engine.getting import Getting
from headwayd.engine.lines import Lines
from headwayd.engine.policies import differences
from headwayd.engine.ports import RoleStep, Store
from headwayd.engine.putting import Putting
from headwayd.engine.readiness import Readiness
from headwayd.engine.redriving import redrive
from headwayd.engine.roles import until_done, until_free
from headwayd.engine.settling import Settling
from headwayd.engine.standing.standing import Standing
from headwayd.engine.sweeper import Sweeper
from headwayd.engine.tasks import Tasks
from headwayd.engine.waking import Wake, Waking
from headwayd.engine.watching.estimates import Estimates, Estimator
from headwayd.engine.watching.watching import Watching

_DRAIN_S = 5.0


class Engine:
    """Every call of the service, by name. All of them raise what `domain.errors` has; `budget_s` is how long their
    store calls may take, waiting not counted. `wall_ms` tells the wall clock, for GetServerInfo only. What happens is
    counted in `counts`, if there are any."""

    def __init__(
        self,
        store: Store,
        *,
        process: str,
        limits: Limits,
        wall_ms: Callable[[], int] = lambda: 0,
        make_estimator: Callable[[], Estimator] | None = None,
        goes_together: bool = True,
        counts: Counts | None = None,
    ) -> None:
        self.limits = limits
        self._store = store = store if counts is None else counted(store, counts)
        self._process = process
        self._wall_ms = wall_ms
        self._started_at_ms = 0
        self._tasks = Tasks()
        self._consumers = Consumers(store, self._tasks.spawn, process=process, goes_together=goes_together)
        self._getters = self._consumers.lines
        self._putters = Lines(self._arm_putters, self._tasks.spawn, kind="producers", most_at_once=1)
        note_together, note_lag, note_error = _notes(counts)
        estimates = Estimates(make_estimator or partial(WaitEstimator, note_error=note_error))
        self._getting = Getting(
            self._consumers, estimates, self._tasks.spawn, goes_together=goes_together, on_step=note_together
        )
        self._standing = Standing(
            self._consumers,
            self._tasks.spawn,
            max_bytes=limits.max_response_bytes,
            estimates=estimates,
            note_lag=note_lag,
        )
        self._settling = Settling(store, self._tasks.spawn, goes_together=goes_together, on_step=note_together)
        self._putting = Putting(
            store,
            self._putters,
            self._tasks.spawn,
            process=process,
            goes_together=goes_together,
            on_step=note_together,
            on_refused=None if counts is None else counts.note_refused,
        )
        self._sweeper = Sweeper(store, self._tasks.spawn)
        self._readiness = Readiness(store)
        self._watching = Watching(store, self._tasks.spawn, estimates, note_lag=note_lag)
        self._forecasts = Forecasts(store, self._watching, estimates, self._tasks.spawn)
        self._absence = Absence(store, self._tasks.spawn, process=process, waited_on=self._waited_on)
        self._waking = Waking(self._wakes, self._tasks.spawn)
        self._is_draining = False

    async def start(self) -> None:
        """Begins to listen to the store and to sweep."""
        self._started_at_ms = self._wall_ms()
        self._store.on_hint(self._kick)
        self._store.on_standing(self._kick_consumers)
        self._store.on_blocked(self._watching.kick_producers)
        self._store.on_due(self._sweeper.note)
        self._store.on_reconnect(self._sweeper.list_anew)
        self._tasks.spawn(self._sweeper.run(), "sweeper")
        self._tasks.spawn(self._readiness.run(), "readiness")
        self._tasks.spawn(self._absence.run(), "absence")

    def on_readiness(self, listener: Callable[[bool], None]) -> None:
        """Who is told whether the store can be counted on: now, and at every change."""
        self._readiness.on_change(listener)

    async def drain(self) -> None:
        """Ends every wait with ShuttingDown. Settling goes on."""
        self._is_draining = True
        for lines in (self._getters, self._putters):
            lines.fail_all(ShuttingDown("this process is going down"))
        self._watching.fail_all(ShuttingDown("this process is going down"))

    def _check_serves(self) -> None:
        if self._is_draining:
            raise ShuttingDown("this process is going down")

    async def stop(self) -> None:
        """Ends all that runs in the background; late leases are given back first."""
        self._sweeper.stop()
        self._readiness.stop()
        self._absence.stop()
        await self._tasks.drain(_DRAIN_S)
        await self._tasks.close()

    def _kick(self, queue: str | None, is_call: bool) -> None:
        if queue is None:
            self._waking.begin()
            return
        self._getters.kick(queue, is_call=is_call)
        self._putters.kick(queue, is_call=is_call)
        self._watching.kick(queue)

    def _wakes(self) -> Iterator[Wake]:
        """First who stands where others of other processes may be taken for the first."""
        return itertools.chain(
            self._putting.restores(),
            self._getters.wakes(),
            self._putters.wakes(),
            self._standing.wakes(),
            self._watching.wakes(),
        )

    def _kick_consumers(self, queue: str) -> None:
        self._standing.kick(queue)
        self._watching.kick_consumers(queue)

    def _waited_on(self) -> set[str]:
        return {*self._getters.queues, *self._putters.queues, *self._standing.queues}

    async def _arm_putters(self, queue: str) -> bool:
        await self._store.arm(queue, until_drained=False)
        return True  # what it says is of those who want to lease

    def check_name(self, name: str) -> None:
        """Raises NameRefused if no queue can have this name."""
        names.accept(name)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many consumers and producers wait in this process."""
        return len(self._getters), len(self._putters)

    @property
    def watcher_count(self) -> int:
        """How many streams watch in this process."""
        return len(self._watching)

    # -- queues -------------------------------------------------------------------------------------------------------

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]:
        """The queue that stands now, and whether this call made it. Raises QueueExists if it has another policy."""
        found, is_made = await self._store.create(queue, policy, budget_s=budget_s)
        if not is_made and (error := differences(found, policy)) is not None:
            raise error
        return found, is_made

    async def describe(self, queue: str, *, budget_s: float) -> Queue:
        """The queue as of one instant."""
        return await self._store.describe(queue, budget_s=budget_s)

    async def list_queues(
        self, prefix: str, page_size: int, page_token: str, *, namespace: str = DEFAULT, budget_s: float
    ) -> tuple[list[Queue], str]:
        """A page of a namespace's queues in byte order of their names, and the token of the next page ("" = none). A
        token is the last name of its page; it and `prefix` are as callers know names. Those of queues are qualified."""
        budget = Budget(budget_s)
        own, after = qualifier(namespace), page_token.encode()
        found = [
            name
            for name in await self._store.names(namespace, budget_s=budget.left_s)
            if (known := name.removeprefix(own)).startswith(prefix) and known.encode() > after
        ]
        page = found[:page_size]
        queues = await self._store.describe_many(page, budget_s=budget.left_s)
        return list(queues), page[-1].removeprefix(own) if len(found) > page_size else ""

    async def used(self, namespace: str, *, with_bytes: bool, budget_s: float) -> Used:
        """What a namespace has, summed up over its queues, each as of its own instant; of what a newer version keeps no
        messages are counted. Cost grows with the store."""
        budget = Budget(budget_s)
        queues = await self._store.names(namespace, budget_s=budget.left_s)
        described = await self._store.describe_many(queues, only_known=True, budget_s=budget.left_s)
        counts = [queue.counts for queue in described]
        return Used(
            queues=frozenset(queues),
            messages=sum(each.length + each.leased + each.delayed + each.dead for each in counts),
            bytes=await self._store.weigh(queues, budget_s=budget.left_s) if with_bytes else 0,
            leases=sum(each.leased for each in counts),
        )

    async def update(
        self, queue: str, policy: Policy, fields: Sequence[str], *, max_backoff_follows: bool, budget_s: float
    ) -> Queue:
        """The queue after the named fields of its policy took the values of `policy`; a named max_backoff that follows
        is at least its min_backoff. Raises FieldInvalid if the policy would contradict itself."""
        return await self._store.update(
            queue, policy, fields, max_backoff_follows=max_backoff_follows, budget_s=budget_s
        )

    async def pause(self, queue: str, *, budget_s: float) -> Queue:
        """Hands out no messages from now on."""
        return await self._store.set_paused(queue, True, budget_s=budget_s)

    async def resume(self, queue: str, *, budget_s: float) -> Queue:
        """Hands out messages again."""
        return await self._store.set_paused(queue, False, budget_s=budget_s)

    async def close(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> Queue:
        """Closes for good. Raises QueueClosed if it was, RoleInUse if a foreign producer kept its role for `wait_ms`,
        QueueDeleted if the queue went meanwhile, ShuttingDown if draining began. Looks at the store for at most
        `look_ms` after the wait."""
        step = await until_done(
            lambda generation, left_s: self._store.close_queue(queue, generation=generation, budget_s=left_s),
            wait_ms,
            look_ms=look_ms,
            budget_s=budget_s,
            is_draining=lambda: self._is_draining,
        )
        if isinstance(step, RoleStep):
            raise RoleInUse.of(queue, role=step.role, holder=step.holder)
        return step

    async def delete(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> None:
        """Leaves nothing behind. Raises RoleInUse if foreign clients kept their roles for `wait_ms`, ShuttingDown if
        draining began; calling again resumes. Looks at the store for at most `look_ms` after the wait."""
        done = await until_done(
            lambda generation, left_s: self._store.delete(queue, generation=generation, budget_s=left_s),
            wait_ms,
            look_ms=look_ms,
            budget_s=budget_s,
            is_draining=lambda: self._is_draining,
        )
        if not done.is_done:
            raise RoleInUse.of(queue, role=done.role, holder=done.holder)

    # -- messages -----------------------------------------------------------------------------------------------------

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """One outcome per message. Raises QueueFull or DuplicateMessage if that befell every message."""
        self._check_serves()
        outcomes = await self._putting.put(order, budget_s=budget_s)
        self._getters.kick(order.queue)
        return outcomes

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """The same for a batch on a stream: what befell every message is told of each. Raises what ended it before
        anything was accepted."""
        self._check_serves()
        outcomes = await self._putting.put_each(order, budget_s=budget_s)
        self._getters.kick(order.queue)
        return outcomes

    def note_refused(self, order: PutOrder, error: HeadwayError) -> None:
        """A Put was refused before it came here."""
        self._putting.note_refused(order, error, len(order.messages))

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        """Leases what there is, waiting up to `wait_ms` for the first. If the caller is cancelled, its leases are given
        back."""
        self._check_serves()
        if order.max_bytes != self.limits.max_response_bytes:
            order = order._replace(max_bytes=self.limits.max_response_bytes)
        return await self._getting.get(order, budget_s=budget_s)

    async def stand(self, order: StandOrder, *, budget_s: float) -> AsyncGenerator[ToldStander, None]:
        """Stands in the consumer line and tells how; what its turns bring is its own until the generator is closed, and
        then given back."""
        self._check_serves()
        async with aclosing(self._standing.stand(order, budget_s=budget_s)) as told:
            async for one in told:
                yield one

    async def consume(
        self, order: ConsumeOrder, steps: AsyncIterator[ConsumeStep], *, budget_s: float
    ) -> AsyncGenerator[ToldConsumer, None]:
        """Leases within the credit and does the steps, until these end; what is leased and not settled is given back
        when the generator is closed."""
        self._check_serves()
        stream = Consuming(
            order,
            steps,
            consumers=self._consumers,
            standing=self._standing,
            spawn=self._tasks.spawn,
            limits=self.limits,
            budget_s=budget_s,
        )
        async with aclosing(stream.run()) as told:
            async for one in told:
                yield one

    async def ack(self, queue: str, leases: Sequence[str], *, result: bytes, budget_s: float) -> Sequence[Settlement]:
        """Settles for good; one settlement per lease."""
        return await self._settling.ack(queue, leases, result=result, budget_s=budget_s)

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        """Gives back, and postpones; one settlement per lease, then one per id. Raises RoleInUse if something is to be
        postponed by id and foreign clients held both roles for half of the time, ShuttingDown if draining began."""
        return await until_free(
            lambda left_s: self._store.delay(order, budget_s=left_s),
            budget_s / 2,
            budget_s=budget_s,
            is_draining=lambda: self._is_draining,
        )

    async def extend(
        self, queue: str, leases: Sequence[str], lease_ms: int, *, progress: Progress | None = None, budget_s: float
    ) -> Sequence[Settlement]:
        """Keeps alive, and tells those who watch how far the work has come; one settlement per lease."""
        return await asyncio.shield(self._store.extend(queue, leases, lease_ms, progress=progress, budget_s=budget_s))

    async def withdraw(self, queue: str, message_ids: Sequence[str], *, budget_s: float) -> Sequence[WithdrawOutcome]:
        """Cancels what waits or is delayed; one outcome per id."""
        return await asyncio.shield(self._store.withdraw(queue, message_ids, budget_s=budget_s))

    async def peek(self, queue: str, from_position: int, max_messages: int, *, budget_s: float) -> Sequence[Peeked]:
        """Waiting messages from a position on."""
        return await self._store.peek(
            queue,
            from_position=from_position,
            max_messages=max_messages,
            max_bytes=self.limits.max_response_bytes,
            budget_s=budget_s,
        )

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch_messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]:
        """What becomes of messages, until all have ended: of each the latest, whenever the caller is ready for more."""
        self._check_serves()
        async with aclosing(self._watching.messages(order, budget_s=budget_s)) as stream:
            async for told in stream:
                yield told

    async def watch_queue(self, queue: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """The queue's numbers, at once and then whenever they have changed, once in `interval_s` at most."""
        self._check_serves()
        async with aclosing(self._watching.queue(queue, interval_s, budget_s=budget_s)) as shown:
            async for told in shown:
                yield told

    async def forecast(self, queue: str, *, budget_s: float) -> ToldQueue:
        """The queue's numbers now, for whoever asks again and again: the expected wait has a basis only then."""
        self._check_serves()
        return await self._forecasts.of(queue, budget_s=budget_s)

    async def watch_blocked(self, queue: str, producer: str, *, budget_s: float) -> AsyncGenerator[ToldProducer, None]:
        """Where the blocked Put of this producer that has waited longest stands, on whatever process, until the queue
        is closed or deleted."""
        self._check_serves()
        async with aclosing(self._watching.producer(queue, producer, budget_s=budget_s)) as places:
            async for told in places:
                yield told

    # -- operators ----------------------------------------------------------------------------------------------------

    async def purge(self, queue: str, with_dead: bool, *, budget_s: float) -> Purged:
        """Empties the queue, as long as that takes, while the store answers each step within `budget_s`. Raises
        RoleInUse if a foreign consumer holds its role."""
        purged = await self._store.purge(queue, with_dead=with_dead, budget_s=budget_s)
        if isinstance(purged, RoleStep):
            raise RoleInUse.of(queue, role=purged.role, holder=purged.holder)
        return purged

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired:
        """Tells, or mends, what a dead foreign client left."""
        return await self._store.repair(queue, confirm_holder, budget_s=budget_s)

    async def check(self, queue: str, max_entries: int, *, budget_s: float) -> Checked:
        """Whether everything kept of the queue fits together. Raises TooLarge if it has more entries."""
        return await self._store.check(queue, max_entries=max_entries, budget_s=budget_s)

    async def list_leased(self, queue: str, max_messages: int, *, budget_s: float) -> Sequence[LeasedMessage]:
        """Messages that are being worked on, those first whose lease ends first."""
        return await self._store.list_leased(queue, max_messages=max_messages, budget_s=budget_s)

    async def list_dead(self, queue: str, page_size: int, page_token: str, *, budget_s: float) -> DeadPage:
        """A page of the dead, in the order they died. Raises FieldInvalid for a token that is none."""
        return await self._store.list_dead(
            queue,
            page_size=page_size,
            page_token=page_token,
            max_bytes=self.limits.max_response_bytes,
            budget_s=budget_s,
        )

    async def redrive(self, order: RedriveOrder, *, budget_s: float) -> AsyncGenerator[RedriveProgress, None]:
        """Puts dead messages back, step by step, each within `budget_s`; the last that it tells is the end. Closed
        before, it stops after the step under way."""
        async with aclosing(redrive(self._store, order, budget_s=budget_s)) as steps:
            async for progress in steps:
                self._getters.kick(order.to_queue or order.queue)
                yield progress

    async def server_facts(self, *, budget_s: float) -> ServerFacts:
        """About this process and its store, asked anew; the last known facts if it does not answer."""
        try:
            facts = await self._store.probe(budget_s=budget_s)
        except StoreUnavailable:
            facts = self._store.facts
        return ServerFacts(process=self._process, started_at_ms=self._started_at_ms, store=facts)


_Note = Callable[[float], None] | None


def _notes(counts: Counts | None) -> tuple[_Note, _Note, _Note]:
    """Who is told how many calls went together, how old a position was when told, and how true an estimate was."""
    if counts is None:
        return None, None, None
    return counts.together.note, counts.position_lag.note, counts.eta_error.note
