"""What the gRPC edge needs of the engine. `engine/engine.py` is the one that fulfils it; tests bring a fake one.

`budget_s` is how many seconds the store calls of one operation may take. `wait_ms` is how long the operation may wait
besides; it is cut to the call's deadline before it comes here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from headwayd.domain.blocked import ToldProducer
from headwayd.domain.consuming import ConsumeOrder, ConsumeStep, ToldConsumer
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
from headwayd.domain.places import LeasedMessage, Progress
from headwayd.domain.standing import GetOutcome, StandOrder, ToldStander
from headwayd.domain.watching import Told, ToldQueue, WatchOrder


class Engine(Protocol):
    """Every operation raises the errors of `headwayd.domain.errors` that its RPC documents."""

    @property
    def limits(self) -> Limits: ...

    def check_name(self, name: str) -> None: ...

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]: ...

    async def describe(self, queue: str, *, budget_s: float) -> Queue: ...

    async def list_queues(
        self, prefix: str, page_size: int, page_token: str, *, budget_s: float
    ) -> tuple[Sequence[Queue], str]: ...

    async def update(
        self, queue: str, policy: Policy, fields: Sequence[str], *, max_backoff_follows: bool, budget_s: float
    ) -> Queue: ...

    async def close(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> Queue: ...

    async def delete(self, queue: str, wait_ms: int, *, look_ms: int, budget_s: float) -> None: ...

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]: ...

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]: ...

    async def get(self, order: GetOrder, *, budget_s: float) -> GetOutcome: ...

    def stand(self, order: StandOrder, *, budget_s: float) -> AsyncGenerator[ToldStander, None]: ...

    def consume(
        self, order: ConsumeOrder, steps: AsyncIterator[ConsumeStep], *, budget_s: float
    ) -> AsyncGenerator[ToldConsumer, None]: ...

    async def ack(
        self, queue: str, leases: Sequence[str], *, result: bytes, budget_s: float
    ) -> Sequence[Settlement]: ...

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]: ...

    async def extend(
        self, queue: str, leases: Sequence[str], lease_ms: int, *, progress: Progress | None, budget_s: float
    ) -> Sequence[Settlement]: ...

    async def withdraw(
        self, queue: str, message_ids: Sequence[str], *, budget_s: float
    ) -> Sequence[WithdrawOutcome]: ...

    async def peek(self, queue: str, from_position: int, max_messages: int, *, budget_s: float) -> Sequence[Peeked]: ...

    def watch_messages(self, order: WatchOrder, *, budget_s: float) -> AsyncGenerator[Told, None]: ...

    def watch_blocked(self, queue: str, producer: str, *, budget_s: float) -> AsyncGenerator[ToldProducer, None]: ...

    def watch_queue(self, queue: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]: ...

    async def forecast(self, queue: str, *, budget_s: float) -> ToldQueue: ...

    async def purge(self, queue: str, with_dead: bool, *, budget_s: float) -> Purged: ...

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired: ...

    async def check(self, queue: str, max_entries: int, *, budget_s: float) -> Checked: ...

    async def list_leased(self, queue: str, max_messages: int, *, budget_s: float) -> Sequence[LeasedMessage]: ...

    async def list_dead(self, queue: str, page_size: int, page_token: str, *, budget_s: float) -> DeadPage: ...

    def redrive(self, order: RedriveOrder, *, budget_s: float) -> AsyncGenerator[RedriveProgress, None]: ...

    async def pause(self, queue: str, *, budget_s: float) -> Queue: ...

    async def resume(self, queue: str, *, budget_s: float) -> Queue: ...

    async def server_facts(self, *, budget_s: float) -> ServerFacts: ...
