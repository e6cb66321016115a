"""Who puts and gets for latency.py: a program in Go (peers/drivers/in_go/latency_go), by gRPC's client or by bare
connections of its own, or two processes of Python, one that puts and one that gets.

Each message has an instant at which it should be put, and is late from that instant on, however busy the client or the
service was then: a stall delays all that it would have delayed in earnest (no coordinated omission). Calls that fail
are counted, not repeated; a stream that breaks ends the run.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from bench.peers import places
from bench.rig import LONG, Stub
from harness import eventually, processes
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery, Message, PutResult
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

PROGRAM = "latency_go"
INSTANT, NUMBER = 20, 10  # digits of what a message begins with: its instant in nanoseconds, and its number
TIMEOUT_S = 20.0
GIVEN_UP_S = 300.0  # a program that takes so much longer than its run
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Order:
    """What is to be put on one service and got on another: so many messages a second for so long. Rate 0: as many as
    `at_once` unanswered messages can."""

    put_address: str
    get_address: str
    queue: str
    rate: float
    seconds: float
    streams: bool = False  # in place of calls: one Produce stream, a batch for each message, and one Consume stream
    at_once: int = 64
    waiters: int = 16  # Gets that wait at a time; of a stream, messages that it may hold
    most: int = 1  # messages that a Get may bring
    size: int = 100  # bytes of a message
    bare: bool = False  # of the program in Go: by a connection of its own, not by gRPC's client
    drain_s: float = 60.0  # so long is waited for what was put and did not come


@dataclass(frozen=True)
class Outcome:
    """How late each message came, when the first and the last one came (s), what went wrong, and how much processor
    time (s) the driver took."""

    late_ms: list[float]
    first_s: float
    last_s: float
    puts_failed: int
    gets_failed: int
    missing: int  # accepted, and did not come
    twice: int
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return len(self.late_ms) / (self.last_s - self.first_s)

    @property
    def trouble(self) -> str:
        """What went wrong; '' if nothing did."""
        wrong = {"Puts failed": self.puts_failed, "Gets failed": self.gets_failed}
        wrong |= {"missing": self.missing, "came twice": self.twice}
        return ", ".join(f"{count} {what}" for what, count in wrong.items() if count)


# -- Go ---------------------------------------------------------------------------------------------------------------


def by_go(order: Order) -> Outcome:
    """One process with a connection to each service. Missing if its program is not there."""
    program = places.program(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        log = Path(folder) / "driver.log"
        process = processes.spawn([program, json.dumps(asdict(order))], log=log, stdout=subprocess.PIPE)
        try:
            told, _ = process.communicate(timeout=order.seconds + order.drain_s + GIVEN_UP_S)
        finally:
            processes.stop(process)
        assert process.returncode == 0, processes.tail(log)
    return Outcome(**json.loads(told))


def by_bare(order: Order) -> Outcome:
    """The same process, whose connections speak no more of gRPC than a run needs."""
    return by_go(replace(order, bare=True))


# -- Python: the getting process --------------------------------------------------------------------------------------


@dataclass
class _Came:
    numbers: list[int] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0
    failed: int = 0
    cpu_s: float = 0.0

    def note(self, deliveries: Sequence[Delivery]) -> list[str]:
        """Also returns their leases."""
        now = time.monotonic_ns()  # all processes of a machine share it
        for one in deliveries:
            self.late_ms.append((now - int(one.message.payload[:INSTANT])) / NS_PER_MS)
            self.numbers.append(int(one.message.payload[INSTANT : INSTANT + NUMBER]))
            self.last_s = now / NS_PER_S
            self.first_s = self.first_s or self.last_s
        return [one.lease for one in deliveries]


def _get(pipe: Connection, order: Order) -> None:
    uvloop.run(_getting(pipe, order))


async def _getting(pipe: Connection, order: Order) -> None:
    came = _Came()
    async with grpc.aio.insecure_channel(order.get_address) as channel:
        stub = QueueServiceStub(channel)
        takes = [_consume(stub, order, came)] if order.streams else [_wait(stub, order, came)] * order.waiters
        tasks = [asyncio.ensure_future(take()) for take in takes]

        async def stand() -> bool:
            counts = (await stub.Describe(pb.DescribeRequest(queue=order.queue))).queue.counts
            return counts.consumers_waiting >= len(tasks)

        await eventually(stand, within=TIMEOUT_S)
        used = time.process_time()
        pipe.send("here")
        expected = await asyncio.to_thread(pipe.recv)
        with suppress(AssertionError):  # how many are missing is told by which came
            await eventually(lambda: len(came.numbers) >= expected, within=order.drain_s)
        came.cpu_s = time.process_time() - used
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send(came)


def _wait(stub: Stub, order: Order, came: _Came) -> Callable[[], Awaitable[None]]:
    """Gets what there is, a message at least, each call with the acks of the one before."""

    async def take() -> None:
        leases: list[str] = []
        while True:
            try:
                request = pb.GetRequest(queue=order.queue, max_messages=order.most, wait=LONG, ack=leases)
                answer = await stub.Get(request)
            except grpc.aio.AioRpcError:
                came.failed += 1
                continue
            leases = came.note(answer.deliveries)

    return take


def _consume(stub: Stub, order: Order, came: _Came) -> Callable[[], Awaitable[None]]:
    """Gets by a stream that holds no more messages than there would be calls, and acknowledges each delivery."""

    async def take() -> None:
        stream = stub.Consume()
        start = pb.ConsumeStart(queue=order.queue, credit=pb.Credit(messages=order.waiters))
        await stream.write(pb.ConsumeRequest(start=start))
        async for answer in stream:
            if leases := came.note(answer.deliveries):
                await stream.write(pb.ConsumeRequest(ack=pb.AckRequest(leases=leases)))

    return take


# -- Python: the putting process --------------------------------------------------------------------------------------


@dataclass
class _Put:
    accepted: list[int] = field(default_factory=list)
    failed: int = 0
    cpu_s: float = 0.0

    def note(self, number: int, results: Sequence[PutResult]) -> None:
        """What became of a message; no results: the call failed."""
        if results and not results[0].HasField("error"):
            self.accepted.append(number)
        else:
            self.failed += 1


def _put(pipe: Connection, order: Order) -> None:
    uvloop.run(_putting(pipe, order))


async def _putting(pipe: Connection, order: Order) -> None:
    put = _Put()
    async with grpc.aio.insecure_channel(order.put_address) as channel:
        stub = QueueServiceStub(channel)
        await channel.channel_ready()
        used = time.process_time()
        await (_produce(stub, order, put) if order.streams else _call(stub, order, put))
        put.cpu_s = time.process_time() - used
    pipe.send(put)


def _message(order: Order, number: int, instant_ns: int) -> Message:
    return Message(payload=(b"%0*d%0*d" % (INSTANT, instant_ns, NUMBER, number)).ljust(order.size, b"x"))


async def _due(order: Order, room: asyncio.Semaphore) -> AsyncIterator[tuple[int, int]]:
    """Each message's number and instant, when it is time to put it; those that were missed at once. Rate 0: when there
    is room."""
    began = time.monotonic_ns()
    if not order.rate:
        number = 0
        while time.monotonic_ns() < began + order.seconds * NS_PER_S:
            await room.acquire()
            yield number, time.monotonic_ns()
            number += 1
        return
    for number in range(int(order.rate * order.seconds)):
        instant = began + int(number / order.rate * NS_PER_S)
        ahead_s = (instant - time.monotonic_ns()) / NS_PER_S
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        yield number, instant


async def _call(stub: Stub, order: Order, put: _Put) -> None:
    """A call at each instant, whether or not those before are answered."""
    room = asyncio.Semaphore(order.at_once)

    async def call(number: int, instant: int) -> None:
        request = pb.PutRequest(queue=order.queue, messages=[_message(order, number, instant)])
        try:
            put.note(number, (await stub.Put(request, timeout=TIMEOUT_S)).results)
        except grpc.aio.AioRpcError:
            put.note(number, ())
        room.release()

    await asyncio.gather(*[asyncio.ensure_future(call(*due)) async for due in _due(order, room)])


async def _produce(stub: Stub, order: Order, put: _Put) -> None:
    """A batch of one at each instant, on one stream."""
    room = asyncio.Semaphore(order.at_once)
    stream = stub.Produce()

    async def read() -> None:
        async for answer in stream:
            put.note(answer.batch, answer.results)
            room.release()

    reading = asyncio.ensure_future(read())
    async for number, instant in _due(order, room):
        batch = pb.ProduceRequest(queue=order.queue, messages=[_message(order, number, instant)], batch=number)
        await stream.write(batch)
    await stream.done_writing()
    await reading


# -- Python: both -----------------------------------------------------------------------------------------------------


@contextmanager
def process(target: Callable[..., None], *words: object) -> Iterator[Connection]:
    """A process of its own, and a pipe to it."""
    context = get_context("spawn")  # gRPC does not survive a fork
    pipe, theirs = context.Pipe()
    child = context.Process(target=target, args=(theirs, *words), daemon=True)
    child.start()
    theirs.close()
    try:
        yield pipe
    finally:
        child.kill()
        child.join()
        pipe.close()


def by_python(order: Order) -> Outcome:
    """Two processes with a connection each."""
    with process(_get, order) as getting:
        assert getting.recv() == "here"
        with process(_put, order) as putting:
            put = putting.recv()
        getting.send(len(put.accepted))
        came = getting.recv()
    assert isinstance(put, _Put)
    assert isinstance(came, _Came)
    seen = set(came.numbers)
    return Outcome(
        late_ms=came.late_ms,
        first_s=came.first_s,
        last_s=came.last_s,
        puts_failed=put.failed,
        gets_failed=came.failed,
        missing=len(set(put.accepted) - seen),
        twice=len(came.numbers) - len(seen),
        cpu_s=put.cpu_s + came.cpu_s,
    )


def _call_empty(pipe: Connection, order: Order) -> None:
    uvloop.run(_calling(pipe, order))


async def _calling(pipe: Connection, order: Order) -> None:
    async with grpc.aio.insecure_channel(order.put_address) as channel:
        await channel.channel_ready()
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/echo/Echo")
        room = asyncio.Semaphore(order.at_once)
        used, due = time.process_time(), _due(order, room)
        body = b"x" * order.size
        replies = await asyncio.gather(*[asyncio.ensure_future(_echoed(call, body)) async for _ in due])
        pipe.send((len(replies), time.process_time() - used))


async def _echoed(call: Callable[[bytes], Awaitable[bytes]], body: bytes) -> None:
    assert await call(body) == body


def call_empty(order: Order) -> tuple[int, float]:
    """Calls the empty service at the order's `put_address`, from one process of Python: how many calls, and how much
    processor time (s) the client took."""
    with process(_call_empty, order) as calling:
        count, cpu_s = calling.recv()
    return count, cpu_s


DRIVERS: dict[str, Callable[[Order], Outcome]] = {"Go": by_go, "bare": by_bare, "Python": by_python}
