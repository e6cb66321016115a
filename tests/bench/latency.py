"""From Put to the Get that waits for it on another service, open loop: part of `make bench`. Prints a table.

Each message has an instant at which it should be put, and is late from that instant on, however busy the client or the
service was then: a stall delays all that it would have delayed in earnest (no coordinated omission). Putting and
getting have a process each. The instants are CLOCK_MONOTONIC, which all processes of a machine share. Calls that fail
are counted, not repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import uvloop

from bench.rig import LONG, Bench, percentile, started
from bench.tables import Table, arguments, made_by, write
from harness import eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

WAITERS = 16  # Gets that wait at a time
AT_ONCE = 64  # Puts in flight while the peak is looked for
PEAK_S = 5.0
RATES = (100, 1_000)
SHARE_OF_PEAK = 0.7
INSTANT = 20  # digits of an instant in nanoseconds, which is what a message begins with
SIZE = 100
TIMEOUT_S = 20.0
DRAIN_S = 60.0
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Order:
    """What the putting process is to do: so many messages a second for so long. Rate 0: as many as AT_ONCE calls
    can."""

    address: str
    queue: str
    rate: float
    seconds: float


@dataclass(frozen=True)
class Seen:
    """How late each message came, when the first and the last one came (s), and how many calls failed."""

    late_ms: list[float]
    first_s: float
    last_s: float
    failed: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return len(self.late_ms) / (self.last_s - self.first_s)


# -- the getting process ----------------------------------------------------------------------------------------------


def _get(pipe: Connection, address: str, queue: str) -> None:
    uvloop.run(_getting(pipe, address, queue))


async def _getting(pipe: Connection, address: str, queue: str) -> None:
    late: list[float] = []
    instants: list[float] = []
    failed = 0
    async with grpc.aio.insecure_channel(address) as channel:
        stub = QueueServiceStub(channel)

        async def wait() -> None:
            nonlocal failed
            leases: list[str] = []
            while True:
                try:
                    answer = await stub.Get(pb.GetRequest(queue=queue, wait=LONG, ack=leases))
                except grpc.aio.AioRpcError:
                    failed += 1
                    continue
                now = time.monotonic_ns()
                leases = [delivery.lease for delivery in answer.deliveries]
                late.extend((now - int(one.message.payload[:INSTANT])) / NS_PER_MS for one in answer.deliveries)
                instants.extend([now / NS_PER_S] * len(leases))

        waiters = [asyncio.ensure_future(wait()) for _ in range(WAITERS)]
        pipe.send("here")
        expected = await asyncio.to_thread(pipe.recv)
        with suppress(AssertionError):  # how many are missing is told by how many came
            await eventually(lambda: len(late) >= expected, within=DRAIN_S)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    pipe.send(Seen(late, min(instants), max(instants), failed))


# -- the putting process ----------------------------------------------------------------------------------------------


def _put(pipe: Connection, order: Order) -> None:
    uvloop.run(_putting(pipe, order))


async def _putting(pipe: Connection, order: Order) -> None:
    async with grpc.aio.insecure_channel(order.address) as channel:
        stub = QueueServiceStub(channel)
        await channel.channel_ready()

        async def put(instant_ns: int) -> bool:
            payload = (b"%0*d" % (INSTANT, instant_ns)).ljust(SIZE, b"x")
            request = pb.PutRequest(queue=order.queue, messages=[Message(payload=payload)])
            try:
                answer = await stub.Put(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return False
            return not answer.results[0].HasField("error")

        done = await (_paced(put, order) if order.rate else _flat_out(put, order))
    pipe.send((sum(done), len(done)))


async def _paced(put: Callable[[int], Awaitable[bool]], order: Order) -> list[bool]:
    """One call at each instant, whether or not those before are answered; instants that were missed at once. Which of
    them went well."""
    count, began = int(order.rate * order.seconds), time.monotonic_ns()
    calls = []
    for n in range(count):
        instant = began + int(n / order.rate * NS_PER_S)
        ahead_s = (instant - time.monotonic_ns()) / NS_PER_S
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        calls.append(asyncio.ensure_future(put(instant)))
    return await asyncio.gather(*calls)


async def _flat_out(put: Callable[[int], Awaitable[bool]], order: Order) -> list[bool]:
    """AT_ONCE calls, one after the other each. Which of them went well."""
    until = time.monotonic() + order.seconds
    done: list[bool] = []

    async def go_on() -> None:
        while time.monotonic() < until:
            done.append(await put(time.monotonic_ns()))

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    return done


# -- what is measured -------------------------------------------------------------------------------------------------


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


async def run(bench: Bench, queue: str, rate: float, seconds: float) -> tuple[Seen, str]:
    """Puts on the first service what is got on the second. Also tells what went wrong; '' if nothing did."""
    await bench.stubs[0].Create(pb.CreateRequest(queue=queue))
    order = Order(bench.services[0].address, queue, rate, seconds)
    with process(_get, bench.services[1].address, queue) as getting:
        assert await asyncio.to_thread(getting.recv) == "here"
        with process(_put, order) as putting:
            accepted, asked = await asyncio.to_thread(putting.recv)
        getting.send(accepted)
        seen = await asyncio.to_thread(getting.recv)
    assert isinstance(seen, Seen)
    wrong = {"Puts failed": asked - accepted, "Gets failed": seen.failed, "missing": accepted - len(seen.late_ms)}
    return seen, ", ".join(f"{count} {what}" for what, count in wrong.items() if count > 0)


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate")
    options = parser.parse_args()
    table = Table(
        "Put → waiting Get on another service",
        ["messages/s", "messages", "p50, ms", "p99, ms", "p99.9, ms", "longest, ms", "trouble"],
        f"Open loop, from the intended instant of the Put; {SIZE} B, {WAITERS} Gets wait. {SHARE_OF_PEAK:.0%} of"
        f" peak is of what {AT_ONCE} Puts in flight brought through in {PEAK_S:.0f} s.",
    )
    async with started(2) as bench:
        at_peak, trouble = await run(bench, "peak", 0, PEAK_S)
        peak = at_peak.rate
        print(f"peak: {peak:,.0f}/s {trouble}")
        rates = {f"{rate:,}": float(rate) for rate in RATES}
        rates[f"{SHARE_OF_PEAK * peak:,.0f} ({SHARE_OF_PEAK:.0%} of {peak:,.0f})"] = SHARE_OF_PEAK * peak
        for n, (name, rate) in enumerate(rates.items()):
            seen, trouble = await run(bench, f"rate-{n}", rate, options.seconds)
            late = seen.late_ms
            shares = (percentile(late, share) for share in (0.5, 0.99, 0.999))
            table.add(name, f"{len(late):,}", *(f"{value:.1f}" for value in (*shares, max(late))), trouble or "none")
    write(options.markdown, "bench-latency", made_by("bench", "bench.latency"), [table])


if __name__ == "__main__":
    asyncio.run(main())
