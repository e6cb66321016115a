"""The engine as one caller sees it: only queues of the caller's namespace, and only what its roles and quotas allow.

Whatever a caller names goes in here, and gets its namespace; whatever a caller is told comes out here, and loses it.
Every operation says which roles allow it, so none can be reached past its check; the table in docs/security.md is
compared with what really is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from headwayd.domain import names
from headwayd.domain.access import ANY_ROLE, CallerRole, Identity
from headwayd.domain.blocked import ToldProducer
from headwayd.domain.consuming import ConsumeOrder, ConsumeStep, Credit, ToldConsumer
from headwayd.domain.errors import HeadwayError, PermissionDenied, QueueNotFound, QuotaExceeded, Violation
from headwayd.domain.joined import errors_of
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
from headwayd.domain.namespaces import bare, qualifier
from headwayd.domain.places import LeasedMessage, Progress
from headwayd.domain.standing import GetOutcome, StandOrder, ToldStander, ToldTurn
from headwayd.domain.watching import Told, ToldQueue, WatchOrder
from headwayd.engine.budgets import Budget
from headwayd.engine.engine import Engine
from headwayd.engine.quotas import Claim, PutClaim, Quota

_PRODUCER, _CONSUMER, _WATCHER, _ADMIN = (int(role) for role in CallerRole)
_ANY = int(ANY_ROLE)
_MOST_KNOWN = 1_000
OrderT = TypeVar("OrderT", PutOrder, GetOrder)


class _Bare:
    """Takes the qualifier out of every error that leaves the block. One for all calls: it keeps nothing."""

    def __init__(self, own: str) -> None:
        self._qualifier = own

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, HeadwayError):
            self.strip(error)

    def strip(self, error: HeadwayError) -> None:
        """In place, and doing it again changes nothing: one error may be told to many of one namespace."""
        own = self._qualifier
        if own:
            error.text = bare(error.text, own)
            error.metadata = {key: bare(value, own) for key, value in error.metadata.items()}
            error.violations = tuple(Violation(one.field, bare(one.description, own)) for one in error.violations)


def _denied(allowed: int, where: str, metadata: dict[str, str]) -> PermissionDenied:
    roles = [role.name.lower() for role in CallerRole if role & (allowed | _ADMIN) and role.name]
    return PermissionDenied(
        f"the caller has none of the roles {', '.join(roles)} {where}", metadata={**metadata, "roles": ",".join(roles)}
    )


def _what_is_left(order: OrderT, budget_s: float, budget: Budget) -> tuple[OrderT, float]:
    """Of an order's wait and of the time of its steps, when a part of its call's time is over: of the wait first. Some
    of that is left: what does not wait at all is answered otherwise."""
    spent_ms = int((budget_s - budget.left_s) * 1_000)
    if not spent_ms:
        return order, budget_s
    waited_ms = min(spent_ms, max(order.wait_ms - 1, 0))
    return order._replace(wait_ms=order.wait_ms - waited_ms), budget_s - (spent_ms - waited_ms) / 1_000


class GuardedEngine:
    """For each caller one. Every operation raises PermissionDenied, and what the engine's own raises."""

    def __init__(self, engine: Engine, identity: Identity, quota: Quota) -> None:
        self.limits: Limits = engine.limits
        self._engine = engine
        self._identity = identity
        self._quota = quota
        self._qualifier = qualifier(identity.namespace)
        self._bare = _Bare(self._qualifier)
        # Of queues on which it was served, not of whatever it names: roles on it, its qualified name.
        self._known: dict[str, tuple[int, str]] = {}

    def _own(self, queue: str, allowed: int) -> str:
        """The qualified name of a queue on which the caller has one of these roles, or is an admin."""
        known = self._known.get(queue)
        roles, name = known or (int(self._identity.roles_on(queue)), self._qualifier + queue)
        if not roles & (allowed | _ADMIN):
            raise _denied(allowed, f"on queue {queue!r}", {"queue": queue})
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[queue] = roles, name
        return name

    def _own_queue(self, queue: Queue) -> Queue:
        return replace(queue, name=queue.name.removeprefix(self._qualifier)) if self._qualifier else queue

    def _own_outcomes(self, outcomes: Sequence[PutOutcome]) -> Sequence[PutOutcome]:
        for error in errors_of(outcomes):
            self._bare.strip(error)
        return outcomes

    def check_name(self, name: str) -> None:
        """Raises NameRefused if no queue can have this name."""
        names.accept(name)

    # -- queues -------------------------------------------------------------------------------------------------------

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]:
        """As the engine's."""
        with self._bare:
            name, budget = self._own(queue, _ADMIN), Budget(budget_s)
            if self._quota.limits.queues is not None and not await self._stands(name, budget):
                await self._quota.check_queues(name, budget)
            found, is_made = await self._engine.create(name, policy, budget_s=budget.left_s)
            return self._own_queue(found), is_made

    async def _stands(self, name: str, budget: Budget) -> bool:
        """One that stands is none more."""
        try:
            await self._engine.describe(name, budget_s=budget.left_s)
        except QueueNotFound:
            return False
        return True

    async def describe(self, queue: str, *, budget_s: float) -> Queue:
        """As the engine's."""
        with self._bare:
            return self._own_queue(await self._engine.describe(self._own(queue, _ANY), budget_s=budget_s))

    async def list_queues(
        self, prefix: str, page_size: int, page_token: str, *, budget_s: float
    ) -> tuple[list[Queue], str]:
        """As the engine's. The roles must be on every queue that could be listed."""
        if not self._identity.roles_on_all(prefix) & (_WATCHER | _ADMIN):
            raise _denied(_WATCHER, f"on all queues whose name begins with {prefix!r}", {})
        with self._bare:
            found, next_token = await self._engine.list_queues(
                prefix, page_size, page_token, namespace=self._identity.namespace, budget_s=budget_s
            )
            return [self._own_queue(queue) for queue in found], next_token

    async def update(
        self, queue: str, policy: Policy, fields: Sequence[str], *, max_backoff_follows: bool, budget_s: float
    ) -> Queue:
        """As the engine's."""
        with self._bare:
            name = self._own(queue, _ADMIN)
            updated = await self._engine.update(
                name, policy, fields, max_backoff_follows=max_backoff_follows, budget_s=budget_s
            )
            return self._own_queue(updated)

    async def close(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> Queue:
        """As the engine's."""
        with self._bare:
            name = self._own(queue, _ADMIN)
            return self._own_queue(await self._engine.close(name, wait_ms, look_ms=look_ms, budget_s=budget_s))

    async def delete(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> None:
        """As the engine's."""
        with self._bare:
            await self._engine.delete(self._own(queue, _ADMIN), wait_ms, look_ms=look_ms, budget_s=budget_s)

    # -- messages -----------------------------------------------------------------------------------------------------

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """As the engine's."""
        with self._bare, PutClaim(self._quota) as claim:
            own, left_s = await self._own_put(order, claim, budget_s)
            return self._own_outcomes(await self._engine.put(own, budget_s=left_s))

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """As the engine's."""
        with self._bare, PutClaim(self._quota) as claim:
            own, left_s = await self._own_put(order, claim, budget_s)
            return self._own_outcomes(await self._engine.put_each(own, budget_s=left_s))

    async def _own_put(self, order: PutOrder, claim: PutClaim, budget_s: float) -> tuple[PutOrder, float]:
        """What the engine is asked, and the time for it. What a quota refuses is counted, unless it comes again: in
        parts, for which there may be room."""
        own, budget = order._replace(queue=self._own(order.queue, _PRODUCER)), Budget(budget_s)
        try:
            if await claim.want(order.messages, budget):
                own = own._replace(on_outcomes=claim.note)
        except QuotaExceeded as error:
            if not order.comes_again:
                self._engine.note_refused(own, error)
            raise
        return _what_is_left(own, budget_s, budget)

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        """As the engine's."""
        with self._bare, self._quota.claim() as claim:
            own, budget = order._replace(queue=self._own(order.queue, _CONSUMER)), Budget(budget_s)
            room = await claim.want_for(order.max_messages, order.ack, budget)
            if room < order.max_messages:
                own = own._replace(room=room)
            own, left_s = _what_is_left(own, budget_s, budget)
            outcome = await self._engine.get(own, budget_s=left_s)
            claim.got(len(outcome.deliveries), held=len(outcome.deliveries))
            return outcome

    async def stand(self, order: StandOrder, *, budget_s: float) -> AsyncGenerator[ToldStander, None]:
        """As the engine's."""
        with self._bare, self._quota.claim() as claim:
            own = replace(order, queue=self._own(order.queue, _CONSUMER))
            await claim.want(order.max_messages, Budget(budget_s))
            async with aclosing(self._engine.stand(own, budget_s=budget_s)) as stream:
                async for told in stream:
                    # Those of its last turn have all ended before it is told anything else.
                    count = len(told.deliveries) if isinstance(told, ToldTurn) else 0
                    claim.got(count, held=count)
                    yield told

    async def consume(
        self, order: ConsumeOrder, steps: AsyncIterator[ConsumeStep], *, budget_s: float
    ) -> AsyncGenerator[ToldConsumer, None]:
        """As the engine's."""
        with self._bare, self._quota.claim() as claim:
            own = replace(order, queue=self._own(order.queue, _CONSUMER))
            await claim.want(order.credit.messages, Budget(budget_s))
            counted = self._own_steps(steps, own.queue, claim, budget_s)
            async with aclosing(self._engine.consume(own, counted, budget_s=budget_s)) as stream:
                async for told in stream:
                    claim.got(len(told.deliveries), held=told.held)
                    yield told

    async def _own_steps(
        self, steps: AsyncIterator[ConsumeStep], queue: str, claim: Claim, budget_s: float
    ) -> AsyncGenerator[ConsumeStep, None]:
        async for step in steps:
            if isinstance(step, Credit):
                await claim.want(step.messages, Budget(budget_s))
            yield replace(step, queue=queue) if isinstance(step, DelayOrder) else step

    async def ack(self, queue: str, leases: Sequence[str], *, result: bytes, budget_s: float) -> Sequence[Settlement]:
        """As the engine's."""
        with self._bare:
            return await self._engine.ack(self._own(queue, _CONSUMER), leases, result=result, budget_s=budget_s)

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        """As the engine's. A producer may postpone what it put, by id; nobody has a lease who is no consumer."""
        with self._bare:
            own = replace(order, queue=self._own(order.queue, _PRODUCER | _CONSUMER))
            return await self._engine.delay(own, budget_s=budget_s)

    async def extend(
        self, queue: str, leases: Sequence[str], lease_ms: int, *, progress: Progress | None, budget_s: float
    ) -> Sequence[Settlement]:
        """As the engine's."""
        with self._bare:
            name = self._own(queue, _CONSUMER)
            return await self._engine.extend(name, leases, lease_ms, progress=progress, budget_s=budget_s)

    async def withdraw(self, queue: str, message_ids: Sequence[str], *, budget_s: float) -> Sequence[WithdrawOutcome]:
        """As the engine's."""
        with self._bare:
            outcomes = await self._engine.withdraw(self._own(queue, _PRODUCER), message_ids, budget_s=budget_s)
            for outcome in outcomes:
                if outcome.error is not None:
                    self._bare.strip(outcome.error)
            return outcomes

    async def peek(self, queue: str, from_position: int, max_messages: int, *, budget_s: float) -> Sequence[Peeked]:
        """As the engine's. It shows payloads: not for those who only watch."""
        with self._bare:
            return await self._engine.peek(self._own(queue, _CONSUMER), from_position, max_messages, budget_s=budget_s)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch_messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]:
        """As the engine's. Attended: whoever goes withdraws, which only a producer may."""
        allowed = _PRODUCER if order.is_attended else _PRODUCER | _WATCHER
        with self._bare:
            own = replace(order, queue=self._own(order.queue, allowed))
            async with aclosing(self._engine.watch_messages(own, budget_s=budget_s)) as stream:
                async for told in stream:
                    yield told

    async def watch_blocked(self, queue: str, producer: str, *, budget_s: float) -> AsyncGenerator[ToldProducer, None]:
        """As the engine's."""
        with self._bare:
            name = self._own(queue, _PRODUCER | _WATCHER)
            async with aclosing(self._engine.watch_blocked(name, producer, budget_s=budget_s)) as places:
                async for told in places:
                    yield told

    async def watch_queue(self, queue: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        """As the engine's."""
        with self._bare:
            name = self._own(queue, _WATCHER)
            async with aclosing(self._engine.watch_queue(name, interval_s, budget_s=budget_s)) as shown:
                async for told in shown:
                    yield replace(told, queue=self._own_queue(told.queue))

    async def forecast(self, queue: str, *, budget_s: float) -> ToldQueue:
        """As the engine's."""
        with self._bare:
            told = await self._engine.forecast(self._own(queue, _WATCHER), budget_s=budget_s)
            return replace(told, queue=self._own_queue(told.queue))

    # -- operators ----------------------------------------------------------------------------------------------------

    async def purge(self, queue: str, with_dead: bool, *, budget_s: float) -> Purged:
        """As the engine's."""
        with self._bare:
            return await self._engine.purge(self._own(queue, _ADMIN), with_dead, budget_s=budget_s)

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired:
        """As the engine's."""
        with self._bare:
            found = await self._engine.repair(self._own(queue, _ADMIN), confirm_holder, budget_s=budget_s)
            findings = [bare(finding, self._qualifier) if self._qualifier else finding for finding in found.findings]
            return replace(found, findings=findings, queue=found.queue and self._own_queue(found.queue))

    async def check(self, queue: str, max_entries: int, *, budget_s: float) -> Checked:
        """As the engine's."""
        with self._bare:
            return await self._engine.check(self._own(queue, _ADMIN), max_entries, budget_s=budget_s)

    async def list_leased(self, queue: str, max_messages: int, *, budget_s: float) -> Sequence[LeasedMessage]:
        """As the engine's. It names messages and consumers: not for those who only watch."""
        with self._bare:
            return await self._engine.list_leased(self._own(queue, _CONSUMER), max_messages, budget_s=budget_s)

    async def list_dead(self, queue: str, page_size: int, page_token: str, *, budget_s: float) -> DeadPage:
        """As the engine's."""
        with self._bare:
            return await self._engine.list_dead(self._own(queue, _ADMIN), page_size, page_token, budget_s=budget_s)

    async def redrive(self, order: RedriveOrder, *, budget_s: float) -> AsyncGenerator[RedriveProgress, None]:
        """As the engine's. Into another queue it is a Put there, by an admin of both."""
        with self._bare:
            to_queue = self._own(order.to_queue, _ADMIN) if order.to_queue else ""
            own = replace(order, queue=self._own(order.queue, _ADMIN), to_queue=to_queue)
            async with aclosing(self._engine.redrive(own, budget_s=budget_s)) as steps:
                async for progress in steps:
                    yield progress

    async def pause(self, queue: str, *, budget_s: float) -> Queue:
        """As the engine's."""
        with self._bare:
            return self._own_queue(await self._engine.pause(self._own(queue, _ADMIN), budget_s=budget_s))

    async def resume(self, queue: str, *, budget_s: float) -> Queue:
        """As the engine's."""
        with self._bare:
            return self._own_queue(await self._engine.resume(self._own(queue, _ADMIN), budget_s=budget_s))

    async def server_facts(self, *, budget_s: float) -> ServerFacts:
        """As the engine's, for whoever has any role on anything."""
        if not self._identity.roles:
            raise _denied(_ANY, "on any queue", {})
        return await self._engine.server_facts(budget_s=budget_s)
