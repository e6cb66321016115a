"""Headway against its ceilings, in one run: part of `make bench`. Prints tables; judges nothing.

(a) An empty grpc.aio service (echo.py), 100 calls in flight on 4 connections: what one process could do if a queue cost
    nothing; once as one server of grpc.aio, and once as the servers on one address that Headway has. Put is driven by
    h2load. Get with the ack of the delivery before needs a new request each time, which h2load cannot make, so it is
    driven by http2.py; and so is the echo that it is compared with.
(b) All that the service asks of its store under load, asked of another one again (store_alone.py): what the store alone
    could do. And the same scripts, called as by an idle service, driven by redis-benchmark in pipelines.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from bench import h2load
from bench.http2 import flood
from bench.peers.catalogue import CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.rig import Bench, empty_service, started
from bench.store_alone import CLIENTS, PIPELINE, another_store, asked_again, by_redis_benchmark, recorded, steps
from bench.tables import Table, arguments, made_by, spread, write
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

SERVICE = "/headway.v1.QueueService"
CONNECTIONS, IN_FLIGHT = 4, 100
ACCEPTORS = 4  # the setting's default
BODY = b"x" * 100
BATCH = 500  # of a Put that fills a queue
TIMEOUT_S = 120


async def puts_a_second(program: str, address: str, message: bytes, calls: int) -> float:
    """Puts per second that are answered, by whomever."""
    shape = {"calls": calls, "in_flight": IN_FLIGHT, "connections": CONNECTIONS}
    return await h2load.rate(program, address, f"{SERVICE}/Put", message, **shape)


async def put(bench: Bench, program: str, calls: int, queue: str) -> float:
    """Unary Puts per second, each of one message."""
    stub = bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    message = pb.PutRequest(queue=queue, messages=[Message(payload=BODY)]).SerializeToString()
    rate = await puts_a_second(program, bench.services[0].address, message, calls)
    length = (await stub.Describe(pb.DescribeRequest(queue=queue))).queue.counts.length
    assert length == calls, f"{length} of {calls} were put"
    return rate


def _get(queue: str, *leases: str) -> bytes:
    return pb.GetRequest(queue=queue, ack=leases).SerializeToString()


def _next(queue: str) -> Callable[[bytes], bytes]:
    """From a delivery to the call that acknowledges it and wants another."""

    def follow(reply: bytes) -> bytes:
        answer = pb.GetResponse.FromString(reply)
        return _get(queue, *(delivery.lease for delivery in answer.deliveries))

    return follow


async def get(bench: Bench, calls: int, queue: str) -> float:
    """Unary Gets per second of a queue with more messages than are got; each acknowledges the delivery before."""
    address, stub = bench.services[0].address, bench.stubs[0]
    first = [_get(queue)] * IN_FLIGHT
    done = await flood(address, f"{SERVICE}/Get", first, _next(queue), calls=calls, connections=CONNECTIONS)
    counts = (await stub.Describe(pb.DescribeRequest(queue=queue))).queue.counts
    assert done.failed == 0, f"{done.failed} calls failed"
    assert counts.leased == IN_FLIGHT, f"{counts.leased} leases were left, not {IN_FLIGHT}"
    return done.rate


async def echoed(address: str, calls: int) -> float:
    """The same load on the empty service: requests and replies are as long as those of Get, and parsed alike."""
    delivery = pb.GetResponse()
    delivery.deliveries.add(message=Message(payload=BODY), lease="x" * 50)
    request = delivery.SerializeToString()

    def follow(reply: bytes) -> bytes:
        pb.GetResponse.FromString(reply)
        return request

    return (
        await flood(address, "/echo/Echo", [request] * IN_FLIGHT, follow, calls=calls, connections=CONNECTIONS)
    ).rate


async def fill(bench: Bench, messages: int, queue: str) -> None:
    """Where h2load is not there to put them."""
    stub = bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    for start in range(0, messages, BATCH):
        some = [Message(payload=BODY)] * min(BATCH, messages - start)
        await stub.Put(pb.PutRequest(queue=queue, messages=some))


async def against_echo(bench: Bench, program: str | None, runs: int, calls: int) -> Table:
    """(a); Put only with h2load."""
    table = Table(
        "Unary calls against an empty grpc.aio service",
        [
            "100 B, 100 in flight",
            "calls/s",
            "echo, calls/s",
            "ratio",
            "echo by as many acceptors, calls/s",
            "ratio",
            "echo by Headway's own server, calls/s",
            "ratio",
        ],
        f"One process each, {calls:,} calls; median (least–most) of {runs} runs behind one that warms up. The echo is"
        f" one server of grpc.aio, as usual; then {ACCEPTORS} on one address; then as many of the kind"
        " that Headway serves by.",
    )
    puts, gets = [], []
    kinds = ((1, False), (ACCEPTORS, False), (ACCEPTORS, True))
    empties: dict[tuple[int, bool], list[float]] = {kind: [] for kind in kinds}
    empty_gets: dict[tuple[int, bool], list[float]] = {kind: [] for kind in kinds}
    message = pb.PutRequest(queue="echo", messages=[Message(payload=BODY)]).SerializeToString()
    async with AsyncExitStack() as stack:
        addresses = {
            (count, is_own): (await stack.enter_async_context(empty_service(count, is_own=is_own)))[0]
            for count, is_own in kinds
        }
        for n in range(runs + 1):
            queue = f"ceiling-{n}"
            if program is None:
                await fill(bench, calls, queue)
            else:
                for kind, address in addresses.items():
                    empties[kind].append(await puts_a_second(program, address, message, calls))
                puts.append(await put(bench, program, calls, queue))
            for kind, address in addresses.items():
                empty_gets[kind].append(await echoed(address, calls))
            gets.append(await get(bench, calls, queue))
    for name, ours, theirs in (("Put", puts, empties), ("Get + Ack in one call", gets, empty_gets)):
        if not ours:
            continue
        row = [name, spread(ours[1:])]
        for others in theirs.values():
            ratios = [mine / other for mine, other in zip(ours[1:], others[1:], strict=True)]
            row += [spread(others[1:]), f"{statistics.median(ratios):.2f}"]
        table.add(*row)
    return table


@dataclass(frozen=True)
class Load:
    """A way to put so many messages into a new queue, and then to get and acknowledge them; `run` tells how many a
    second it was of each. `batch`: so many in each batch of it."""

    way: str
    messages: int
    batch: int
    run: Callable[[], Awaitable[tuple[float, float]]]


def singly(bench: Bench, program: str, calls: int) -> Load:
    """By single calls."""
    numbers = itertools.count()

    async def run() -> tuple[float, float]:
        queue = f"single-{next(numbers)}"
        return await put(bench, program, calls, queue), await get(bench, calls, queue)

    return Load("single calls", calls, 1, run)


def streamed(bench: Bench, messages: int, folder: Path) -> Load:
    """By four Produce streams, in batches of 100, and by four Consume streams then."""
    cell = Cell(messages, len(BODY), CONNECTIONS, patience_s=TIMEOUT_S)
    contest = Contest(CATALOGUE["Headway, streams"], cell, bench.services[0].address, folder)

    async def run() -> tuple[float, float]:
        puts, takes, fault = await asyncio.to_thread(contest.one_after_the_other)
        assert not fault, fault
        return puts, takes

    return Load("4 streams, batches of 100", messages, 100, run)


async def scripts_alone(bench: Bench, program: str, load: Load) -> tuple[float, float]:
    """Messages per second that redis-benchmark puts, and leases, in batches of this load's size."""
    queue, stub, batch = f"alone-{load.batch}", bench.stubs[0], load.batch
    calls = load.messages // batch // (CLIENTS * PIPELINE) * (CLIENTS * PIPELINE)  # it makes whole pipelines

    async def length() -> int:
        return (await stub.Describe(pb.DescribeRequest(queue=queue))).queue.counts.length

    await stub.Create(pb.CreateRequest(queue=queue))
    put_one = partial(stub.Put, pb.PutRequest(queue=queue, messages=[Message(payload=BODY)] * batch))
    get_one = partial(stub.Get, pb.GetRequest(queue=queue, max_messages=batch))
    puts = await by_redis_benchmark(program, bench, "put", put_one, calls)
    assert (there := await length()) == (calls + 1) * batch, f"{there} messages were put"
    gets = await by_redis_benchmark(program, bench, "get", get_one, calls)
    assert (there := await length()) == 0, f"{there} messages were left"
    await stub.Delete(pb.DeleteRequest(queue=queue))
    return puts * batch, gets * batch


async def against_store(bench: Bench, runs: int, loads: Sequence[Load]) -> list[Table]:
    """(b)"""
    told = "; ".join(f"{load.messages:,} messages by {load.way}" for load in loads)
    table = Table(
        "Messages against what the store alone does",
        ["100 B", "messages in a step", "through Headway, messages/s", "the same steps alone, messages/s", "ratio"],
        f"{told}. The steps are those of one more run under load, asked of another store by one connection; median"
        f" (least–most) of {runs} runs of both, in turn.",
    )
    scripts = Table(
        "Messages against the scripts by redis-benchmark",
        ["100 B", "through Headway, messages/s", "the script by redis-benchmark, messages/s", "ratio"],
        f"One call of an idle service, of 1 message or of 100, over and over; {CLIENTS} connections, {PIPELINE} calls"
        " ahead on each. Of Get + Ack it only leases. Under load a service has more messages in a call, so that the"
        f" ratio may pass 1. Median (least–most) of {runs} runs.",
        silent=True,
    )  # shown behind the other, not row by row among it
    program = shutil.which("redis-benchmark")
    if program is None:
        print("left out: redis-benchmark is not installed (make bench-peers-setup)")
    with another_store(bench) as store:
        for load in loads:
            await load.run()  # warms up
            recording = await recorded(bench, load.run)
            through, alone, by_script = [], [], []
            for _ in range(runs):
                through.append(await load.run())
                alone.append([load.messages / took for took in await asked_again(store, recording, load.messages)])
                if program is not None:
                    by_script.append(await scripts_alone(bench, program, load))
            for at, (what, calls) in enumerate((("Put", recording.puts), ("Get + Ack", recording.takes))):
                ours, theirs = [rates[at] for rates in through], [rates[at] for rates in alone]
                ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
                name = f"{what}, {load.way}"
                table.add(name, f"{load.messages / steps(calls):,.1f}", spread(ours), spread(theirs), f"{ratio:.2f}")
                if by_script:
                    theirs = [rates[at] for rates in by_script]
                    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
                    scripts.add(name, spread(ours), spread(theirs), f"{ratio:.2f}")
    if program is not None:
        print(f"\n{scripts.markdown()}")
    return [table, scripts]


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="single calls of a run")
    parser.add_argument("--messages", type=int, default=50_000, help="of a run in batches")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    program = h2load.installed()
    async with started(1) as bench:
        first = await against_echo(bench, program, options.runs, options.calls)
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        async with started(1) as bench:
            loads = [streamed(bench, options.messages, Path(folder))]
            if program is not None:
                loads.insert(0, singly(bench, program, options.calls))
            others = await against_store(bench, options.runs, loads)
    if program is None or shutil.which("redis-benchmark") is None:
        print("without h2load and redis-benchmark that is not all: the figures are not written into a file")
    else:
        write(options.markdown, "bench-ceiling", made_by("bench", "bench.ceiling"), [first, *others])


if __name__ == "__main__":
    uvloop.run(main())
