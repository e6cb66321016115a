"""An engine that remembers what it was asked, and answers or fails as a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headwayd.domain import names
from headwayd.domain.blocked import ToldProducer
from headwayd.domain.consuming import ConsumeOrder, ConsumeStep, ToldConsumer
from headwayd.domain.limits import Limits
from headwayd.domain.model import (
    Checked,
    Counts,
    DeadPage,
    DelayOrder,
    GetOrder,
    Peeked,
    Policy,
    Purged,
    PutCode,
    PutOrder,
    PutOutcome,
    Queue,
    RedriveOrder,
    RedriveProgress,
    Repaired,
    Role,
    ServerFacts,
    Settled,
    Settlement,
    StoreFacts,
    WithdrawOutcome,
)
from headwayd.domain.places import LeasedMessage, Progress
from headwayd.domain.standing import GetOutcome, StandOrder, ToldOver, ToldStander
from headwayd.domain.watching import End, Told, ToldFinished, ToldQueue, WatchOrder

Answer = TypeVar("Answer")


def queue_named(name: str = "q", **changes: Any) -> Queue:
    known: dict[str, Any] = {
        "name": name,
        "policy": Policy(),
        "is_closed": False,
        "is_paused": False,
        "counts": Counts(),
        "created_at_ms": 1_700_000_000_123,
        "generation": "g1",
        "producer": Role(),
        "consumer": Role(),
        "durability": "everysec",
    }
    return Queue(**{**known, **changes})


@dataclass
class FakeEngine:
    """`calls` lists (operation, arguments); `budgets` their budgets. With `error` set every operation raises it; with
    `hold` set every operation waits for it; `cancelled` counts those that were cancelled there."""

    limits: Limits = field(default_factory=Limits)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    budgets: list[float] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    hold: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    cleaned_up_after_s: float = 0.0

    @property
    def last(self) -> Any:
        """The arguments of the last call."""
        return self.calls[-1][1]

    def check_name(self, name: str) -> None:
        names.accept(name)

    async def _do(self, operation: str, asked: Any, budget_s: float, default: Answer) -> Answer:
        self.calls.append((operation, asked))
        self.budgets.append(budget_s)
        self.started.set()
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(self.cleaned_up_after_s)
                self.cancelled.set()
                raise
        if self.error is not None:
            raise self.error
        answer: Answer = self.answers.get(operation, default)
        return answer

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]:
        return await self._do("create", (queue, policy), budget_s, (queue_named(queue, policy=policy), True))

    async def describe(self, queue: str, *, budget_s: float) -> Queue:
        return await self._do("describe", queue, budget_s, queue_named(queue))

    async def list_queues(
        self, prefix: str, page_size: int, page_token: str, *, budget_s: float
    ) -> tuple[list[Queue], str]:
        return await self._do("list", (prefix, page_size, page_token), budget_s, ([queue_named()], "next"))

    async def update(
        self, queue: str, policy: Policy, fields: Sequence[str], *, max_backoff_follows: bool, budget_s: float
    ) -> Queue:
        return await self._do("update", (queue, policy, tuple(fields)), budget_s, queue_named(queue))

    async def close(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> Queue:
        return await self._do("close", (queue, wait_ms, look_ms), budget_s, queue_named(queue, is_closed=True))

    async def delete(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> None:
        await self._do("delete", (queue, wait_ms, look_ms), budget_s, None)

    async def put(self, order: PutOrder, *, budget_s: float) -> list[PutOutcome]:
        outcomes = [PutOutcome(PutCode.QUEUED, m.id or f"~{i}", i, i) for i, m in enumerate(order.messages, 1)]
        return await self._do("put", order, budget_s, outcomes)

    async def put_each(self, order: PutOrder, *, budget_s: float) -> list[PutOutcome]:
        outcomes = [PutOutcome(PutCode.QUEUED, m.id or f"~{i}", i, i) for i, m in enumerate(order.messages, 1)]
        return await self._do("put_each", order, budget_s, outcomes)

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome:
        return await self._do("get", order, budget_s, GetOutcome())

    async def ack(self, queue: str, leases: Sequence[str], *, result: bytes, budget_s: float) -> Sequence[Settlement]:
        default: Sequence[Settlement] = [Settlement(lease, Settled.ACKED) for lease in leases]
        return await self._do("ack", (queue, leases, result), budget_s, default)

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        default: Sequence[Settlement] = [
            *(Settlement(lease, Settled.RELEASED, 1) for lease in order.leases),
            *(Settlement("", Settled.DELAYED, 0, 1_700_000_000_002, id) for id in order.message_ids),  # noqa: A001
        ]
        return await self._do("delay", order, budget_s, default)

    async def extend(
        self, queue: str, leases: Sequence[str], lease_ms: int, *, progress: Progress | None = None, budget_s: float
    ) -> Sequence[Settlement]:
        default: Sequence[Settlement] = [Settlement(lease, Settled.EXTENDED, 0, 1_700_000_000_001) for lease in leases]
        asked = (queue, leases, lease_ms) if progress is None else (queue, leases, lease_ms, progress)
        return await self._do("extend", asked, budget_s, default)

    async def consume(
        self, order: ConsumeOrder, steps: AsyncIterator[ConsumeStep], *, budget_s: float
    ) -> AsyncGenerator[ToldConsumer, None]:
        default: Sequence[ToldConsumer] = [ToldConsumer(is_drained=True)]
        for told in await self._do("consume", (order, [step async for step in steps]), budget_s, default):
            yield told

    async def stand(self, order: StandOrder, *, budget_s: float) -> AsyncGenerator[ToldStander, None]:
        default: Sequence[ToldStander] = [ToldOver(is_deleted=False)]
        for told in await self._do("stand", order, budget_s, default):
            yield told

    async def watch_messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]:
        default: Sequence[Told] = [ToldFinished(message_id, None, End.UNKNOWN) for message_id in order.message_ids]
        for told in await self._do("watch_messages", order, budget_s, default):
            yield told

    async def watch_blocked(self, queue: str, producer: str, *, budget_s: float) -> AsyncGenerator[ToldProducer, None]:
        default: Sequence[ToldProducer] = [ToldOver(is_deleted=False)]
        for told in await self._do("watch_blocked", (queue, producer), budget_s, default):
            yield told

    async def watch_queue(self, queue: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        default: Sequence[ToldQueue] = [ToldQueue(queue_named(queue), 1_700_000_000_123)]
        for told in await self._do("watch_queue", (queue, interval_s), budget_s, default):
            yield told

    async def forecast(self, queue: str, *, budget_s: float) -> ToldQueue:
        return await self._do("forecast", queue, budget_s, ToldQueue(queue_named(queue), 1_700_000_000_123))

    async def withdraw(self, queue: str, message_ids: Sequence[str], *, budget_s: float) -> Sequence[WithdrawOutcome]:
        default: Sequence[WithdrawOutcome] = [WithdrawOutcome(message_id) for message_id in message_ids]
        return await self._do("withdraw", (queue, message_ids), budget_s, default)

    async def check(self, queue: str, max_entries: int, *, budget_s: float) -> Checked:
        default = Checked(findings=["one", "two"], entries=7, counts=Counts(length=3))
        return await self._do("check", (queue, max_entries), budget_s, default)

    async def list_leased(self, queue: str, max_messages: int, *, budget_s: float) -> Sequence[LeasedMessage]:
        default: Sequence[LeasedMessage] = []
        return await self._do("list_leased", (queue, max_messages), budget_s, default)

    async def list_dead(self, queue: str, page_size: int, page_token: str, *, budget_s: float) -> DeadPage:
        return await self._do("list_dead", (queue, page_size, page_token), budget_s, DeadPage([], ""))

    async def redrive(self, order: RedriveOrder, *, budget_s: float) -> AsyncGenerator[RedriveProgress, None]:
        default: Sequence[RedriveProgress] = [
            RedriveProgress(redriven=1, remaining=2),
            RedriveProgress(redriven=2, remaining=0, not_found_ids=["x"]),
        ]
        for progress in await self._do("redrive", order, budget_s, default):
            yield progress

    async def peek(self, queue: str, from_position: int, max_messages: int, *, budget_s: float) -> Sequence[Peeked]:
        default: Sequence[Peeked] = []
        return await self._do("peek", (queue, from_position, max_messages), budget_s, default)

    async def purge(self, queue: str, with_dead: bool, *, budget_s: float) -> Purged:
        return await self._do("purge", (queue, with_dead), budget_s, Purged(1, 2, 3))

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired:
        default = Repaired(
            findings=["the producer role is lost"],
            is_repaired=bool(confirm_holder),
            producer=Role(is_taken=True, holder="old"),
            consumer=Role(),
            queue=queue_named(queue),
        )
        return await self._do("repair", (queue, confirm_holder), budget_s, default)

    async def pause(self, queue: str, *, budget_s: float) -> Queue:
        return await self._do("pause", queue, budget_s, queue_named(queue, is_paused=True))

    async def resume(self, queue: str, *, budget_s: float) -> Queue:
        return await self._do("resume", queue, budget_s, queue_named(queue))

    async def server_facts(self, *, budget_s: float) -> ServerFacts:
        store = StoreFacts(kind="valkey", version="9.1.2", is_reachable=True, durability="everysec", warnings=["w"])
        default = ServerFacts(process="host:1", started_at_ms=1_700_000_000_000, store=store)
        return await self._do("server_facts", None, budget_s, default)
