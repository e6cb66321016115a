"""Many streams of one service, opened and read by a process of their own: what is measured is then the service, and not
the process that measures. The parent holds a `Crowd`; the rest of this file is what its child does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import grpc
import grpc.aio

from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

CHANNELS = 4  # so many connections; each carries its share of the streams
STREAM_S = 1_800.0
LEASED, FINISHED = 0, -1  # what `Told.position` is when a message does not wait


class Told(NamedTuple):
    """What a reader was told of a message, and when it had it (seconds since 1970)."""

    id: str
    position: int
    at: float


@dataclass(frozen=True)
class Opened:
    """How opening went: seconds from the first call until every stream had brought its first message or had ended, and
    what those that ended before ended with."""

    took_s: float
    refused: Counter[str]


@dataclass(frozen=True)
class Order:
    """What a crowd is to open: one stream for each group of ids, or `standing` streams in the consumer line. So many
    are opened at once; 0: all of them."""

    address: str
    queue: str
    groups: Sequence[Sequence[str]] = ()
    standing: int = 0
    wave: int = 0


class Crowd:
    """A child process and its streams. `pid` may be killed."""

    def __init__(self, order: Order) -> None:
        context = get_context("spawn")  # gRPC does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, order), daemon=True)
        self._process.start()
        theirs.close()

    async def _answer(self) -> Any:
        return await asyncio.to_thread(self._pipe.recv)

    async def is_there(self) -> None:
        """Returns when the child could open its streams."""
        assert await self._answer() == "here"

    async def open(self) -> Opened:
        """Opens all streams; they are read from now on."""
        self._pipe.send("open")
        opened = await self._answer()
        assert isinstance(opened, Opened)
        return opened

    async def end(self) -> tuple[list[Told], Counter[str]]:
        """Ends all streams; what was told on them, in order of arrival, and what ended with an error."""
        self._pipe.send("end")
        told, errors = await self._answer()
        return told, errors

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@asynccontextmanager
async def crowds(*orders: Order) -> AsyncIterator[list[Crowd]]:
    """Crowds that are there, and gone behind the block."""
    them = [Crowd(order) for order in orders]
    try:
        for crowd in them:
            await crowd.is_there()
        yield them
    finally:
        for crowd in them:
            crowd.close()


# -- the child --------------------------------------------------------------------------------------------------------


def _run(pipe: Connection, order: Order) -> None:
    asyncio.run(_serve(pipe, order))


async def _serve(pipe: Connection, order: Order) -> None:
    # A pool of streams for each connection: gRPC would otherwise share one among channels to the same address.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(order.address, options=options) for _ in range(CHANNELS)]
    for channel in channels:
        await channel.channel_ready()
    streams = _Streams(order, [QueueServiceStub(channel) for channel in channels])
    pipe.send("here")
    assert await asyncio.to_thread(pipe.recv) == "open"
    pipe.send(await streams.open())
    assert await asyncio.to_thread(pipe.recv) == "end"
    pipe.send((streams.told, streams.errors))
    await asyncio.to_thread(pipe.recv)  # until killed: ending thousands of streams one by one takes longer


@dataclass
class _Streams:
    order: Order
    stubs: Sequence[Any]
    told: list[Told] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    readers: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> Opened:
        opens = [self._watches(ids) for ids in self.order.groups]
        opens += [self._stands() for _ in range(self.order.standing)]
        began = time.perf_counter()
        wave = self.order.wave or len(opens) or 1
        for start in range(0, len(opens), wave):
            await asyncio.gather(*(self._begin(n, read) for n, read in enumerate(opens[start : start + wave])))
        return Opened(time.perf_counter() - began, self.errors.copy())

    async def _begin(self, number: int, read: Callable[[Any, asyncio.Event], Awaitable[None]]) -> None:
        has_begun = asyncio.Event()
        task = asyncio.create_task(self._guarded(read, self.stubs[number % len(self.stubs)], has_begun))
        self.readers.add(task)
        await has_begun.wait()

    async def _guarded(
        self, read: Callable[[Any, asyncio.Event], Awaitable[None]], stub: Any, has_begun: asyncio.Event
    ) -> None:
        try:
            await read(stub, has_begun)
        except grpc.aio.AioRpcError as error:
            self.errors[f"{error.code().name}: {error.details()}"] += 1
        finally:
            has_begun.set()

    def _watches(self, ids: Sequence[str]) -> Callable[[Any, asyncio.Event], Awaitable[None]]:
        async def read(stub: Any, has_begun: asyncio.Event) -> None:
            request = pb.WatchPositionRequest(queue=self.order.queue, messages=pb.MessageIds(ids=ids))
            async for one in stub.WatchPosition(request, timeout=STREAM_S):
                self._note(one)
                has_begun.set()

        return read

    def _note(self, one: Any) -> None:
        at = time.time()
        match one.WhichOneof("event"):
            case "position":
                self.told.append(Told(one.position.id, one.position.position, at))
            case "leased":
                self.told.append(Told(one.leased.id, LEASED, at))
            case "finished":
                self.told.append(Told(one.finished.id, FINISHED, at))

    def _stands(self) -> Callable[[Any, asyncio.Event], Awaitable[None]]:
        async def read(stub: Any, has_begun: asyncio.Event) -> None:
            stand = pb.Stand(keep_standing=True)
            async for one in stub.WatchPosition(
                pb.WatchPositionRequest(queue=self.order.queue, stand=stand), timeout=STREAM_S
            ):
                has_begun.set()
                if one.HasField("granted"):
                    leases = [delivery.lease for delivery in one.granted.deliveries]
                    self.told.append(Told("", LEASED, time.time()))
                    await stub.Ack(pb.AckRequest(queue=self.order.queue, leases=leases))

        return read
