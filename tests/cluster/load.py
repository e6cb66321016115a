"""Producers and consumers that go on whatever happens, and books of what they were told."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

import headway
from harness import WireError, error_of, eventually
from headway.v1 import message_pb2
from wire.calls import UNAVAILABLE, Line

KEEP = message_pb2.ON_DUPLICATE_KEEP
_PRODUCERS, _CONSUMERS = 4, 2
_PAUSE_S = 0.02  # after a call that failed, and between two Puts of one producer


@dataclass(slots=True)
class Books:
    """What was acknowledged to producers, what consumers got, and every error that anybody was told."""

    accepted: dict[str, float] = field(default_factory=dict)  # id → when
    got: set[str] = field(default_factory=set)
    errors: list[WireError] = field(default_factory=list)
    is_over: bool = False

    @property
    def longest_outage_s(self) -> float:
        """The longest time between two Puts that were acknowledged one after the other."""
        times = sorted(self.accepted.values())
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    @property
    def lost(self) -> set[str]:
        """Acknowledged, and never got."""
        return self.accepted.keys() - self.got

    def note(self, error: grpc.aio.AioRpcError) -> None:
        """Whatever goes wrong must be something that says when to come again."""
        said = error_of(error)
        self.errors.append(said)
        assert said.code is UNAVAILABLE, said
        assert said.retry_delay, said


@dataclass(slots=True)
class Patience:
    """What a caller met who uses the Python client: its longest Put, how many were not confirmed because too few
    replicas followed for longer than the client tries, and the errors of those that failed for good otherwise."""

    longest_s: float = 0.0
    unconfirmed_count: int = 0
    failures: list[headway.HeadwayError] = field(default_factory=list)


@asynccontextmanager
async def load_on(line: Line) -> AsyncIterator[Books]:
    """Loads the queue while the block runs; afterwards everything that is there has been got."""
    books = Books()
    async with asyncio.TaskGroup() as group:
        producers = [group.create_task(_produce(line, books, str(number))) for number in range(_PRODUCERS)]
        for _ in range(_CONSUMERS):
            group.create_task(_consume(line, books))
        await eventually(lambda: len(books.got) > 50, within=20)
        yield books
        done_before = len(books.accepted)
        await eventually(lambda: len(books.accepted) > done_before + 50, within=20)
        books.is_over = True
        await asyncio.wait(producers)
    await _drain(line, books)


@asynccontextmanager
async def patient(queue: headway.Queue) -> AsyncIterator[Patience]:
    """Puts one after the other by the Python client, which tries again by itself, while the block runs."""
    patience = Patience()

    async def put() -> None:
        for number in itertools.count():
            began = time.monotonic()
            try:
                await queue.put(b"", id=f"patient-{number}")
            except headway.NotDurable:  # nothing happened, and nothing else can be said until a replica follows
                patience.unconfirmed_count += 1
            except headway.HeadwayError as error:
                patience.failures.append(error)
            patience.longest_s = max(patience.longest_s, time.monotonic() - began)
            await asyncio.sleep(_PAUSE_S)

    putting = asyncio.create_task(put())
    try:
        yield patience
    finally:
        putting.cancel()


async def _produce(line: Line, books: Books, name: str) -> None:
    for number in itertools.count():
        id_ = f"{name}-{number}"
        while True:
            try:
                await line.put(message_pb2.Message(id=id_, payload=id_.encode()), on_duplicate=KEEP)
                break
            except grpc.aio.AioRpcError as error:
                books.note(error)
                await asyncio.sleep(_PAUSE_S)
        books.accepted[id_] = time.monotonic()
        if books.is_over:
            return
        await asyncio.sleep(_PAUSE_S)


async def _consume(line: Line, books: Books) -> None:
    while not books.is_over:
        await _take_some(line, books, wait_ms=500)


async def _take_some(line: Line, books: Books, *, wait_ms: float) -> int:
    """Gets and acks a few; how many it got. What an unknown outcome kept leased lapses soon."""
    try:
        answer = await line.get(20, wait_ms=wait_ms, lease_ms=2_000)
        books.got.update(delivery.message.id for delivery in answer.deliveries)
        if answer.deliveries:
            await line.ack(*(delivery.lease for delivery in answer.deliveries))
        return len(answer.deliveries)
    except grpc.aio.AioRpcError as error:
        books.note(error)
        await asyncio.sleep(_PAUSE_S)
        return 0


async def _drain(line: Line, books: Books) -> None:
    async def is_empty() -> bool:
        await _take_some(line, books, wait_ms=100)
        try:
            counts = await line.counts()
        except grpc.aio.AioRpcError as error:
            books.note(error)
            return False
        return counts.length == counts.leased == counts.delayed == 0

    await eventually(is_empty, within=30)


def times_of(books: Books) -> str:
    """The errors by reason and cause, for a figure."""
    counted: dict[str, int] = {}
    for error in books.errors:
        name = " ".join(filter(None, (error.reason, error.metadata.get("cause"))))
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in sorted(counted.items())) or "none"
