"""Headway against its ceilings, in one run: part of `make bench`. Prints tables; judges nothing.

(a) An empty grpc.aio service (echo.py), 100 calls in flight on 4 connections: what one process could do if a queue cost
    nothing; once as one server of grpc.aio, and once as the servers on one address that Headway has. Put is driven by
    h2load. Get with the ack of the delivery before needs a new request each time, which h2load cannot make, so it is
    driven by http2.py; and so is the echo that it is compared with.
(b) The same scripts with the same arguments, sent by redis-benchmark in pipelines: what the store alone could do.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import uvloop

from bench import h2load
from bench.http2 import flood
from bench.peers.catalogue import CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.rig import Bench, empty_service, started
from bench.store_alone import CLIENTS, PIPELINE, recorded, store_alone
from bench.tables import Table, arguments, made_by, spread, write
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

SERVICE = "/headway.v1.QueueService"
CONNECTIONS, IN_FLIGHT = 4, 100
ACCEPTORS = 4  # the setting's default
BODY = b"x" * 100
BATCHES = (1, 100)
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


async def against_echo(bench: Bench, runs: int, calls: int) -> tuple[Table, list[float]]:
    """(a), and the rates of Put."""
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
    program = h2load.installed()
    if program is None:
        return table, []
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
            for kind, address in addresses.items():
                empties[kind].append(await puts_a_second(program, address, message, calls))
            puts.append(await put(bench, program, calls, queue))
            for kind, address in addresses.items():
                empty_gets[kind].append(await echoed(address, calls))
            gets.append(await get(bench, calls, queue))
    for name, ours, theirs in (("Put", puts, empties), ("Get + Ack in one call", gets, empty_gets)):
        row = [name, spread(ours[1:])]
        for others in theirs.values():
            ratios = [mine / other for mine, other in zip(ours[1:], others[1:], strict=True)]
            row += [spread(others[1:]), f"{statistics.median(ratios):.2f}"]
        table.add(*row)
    return table, puts[1:]


async def alone(bench: Bench, program: str, batch: int, messages: int) -> tuple[float, float]:
    """Messages per second that the store puts, and leases, in batches, without a service."""
    queue, stub = f"alone-{batch}", bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    put_one = partial(stub.Put, pb.PutRequest(queue=queue, messages=[Message(payload=BODY)] * batch))
    get_one = partial(stub.Get, pb.GetRequest(queue=queue, max_messages=batch))
    putting = await recorded(bench, "put", put_one)
    puts = await store_alone(program, bench, putting, messages // batch)
    getting = await recorded(bench, "get", get_one)
    gets = await store_alone(program, bench, getting, messages // batch)
    left = (await stub.Describe(pb.DescribeRequest(queue=queue))).queue.counts.length
    assert left == 0, f"{left} messages were left"
    await stub.Delete(pb.DeleteRequest(queue=queue))
    return puts * batch, gets * batch


def streamed(messages: int, runs: int, folder: Path, address: str) -> tuple[list[float], list[float]]:
    """Messages per second that four Produce streams put, in batches of 100, and that four Consume streams then get and
    acknowledge."""
    cell = Cell(messages, len(BODY), CONNECTIONS, patience_s=TIMEOUT_S)
    contest = Contest(CATALOGUE["Headway, streams"], cell, address, folder)
    done = [contest.one_after_the_other() for _ in range(runs)]
    assert not any(fault for _, _, fault in done), done
    return [puts for puts, _, _ in done], [takes for _, takes, _ in done]


async def against_store(bench: Bench, runs: int, messages: int, unary: Sequence[float]) -> Table:
    """(b)"""
    table = Table(
        "Messages against what the store alone does",
        ["100 B", "through Headway, messages/s", "the same script alone, messages/s", "ratio"],
        f"{messages:,} messages; redis-benchmark with {CLIENTS} connections, {PIPELINE} calls ahead on each;"
        f" median (least–most) of {runs} runs.",
    )
    program = shutil.which("redis-benchmark")
    if program is None:
        print("left out: redis-benchmark is not installed (make bench-peers-setup)")
        return table
    store = {batch: [await alone(bench, program, batch, messages) for _ in range(runs)] for batch in BATCHES}
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        address = bench.services[0].address
        puts, takes = await asyncio.to_thread(streamed, messages, runs, Path(folder), address)
    rows = (("Put, single calls", unary, BATCHES[0]), ("Put, 4 streams, batches of 100", puts, BATCHES[-1]))
    for name, ours, batch in rows:
        theirs = [alone for alone, _ in store[batch]]
        ratio = f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours else ""
        table.add(name, spread(ours) if ours else "", spread(theirs), ratio)
    table.add("Get + Ack, 4 streams, batches of 100", spread(takes), "", "")
    for batch in BATCHES:
        table.add(f"lease, batches of {batch}", "", spread([gets for _, gets in store[batch]]), "")
    return table


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="single calls of a run")
    parser.add_argument("--messages", type=int, default=50_000, help="of a run in batches")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    async with started(1) as bench:
        first, unary = await against_echo(bench, options.runs, options.calls)
    async with started(1) as bench:
        second = await against_store(bench, options.runs, options.messages, unary)
    write(options.markdown, "bench-ceiling", made_by("bench", "bench.ceiling"), [first, second])


if __name__ == "__main__":
    uvloop.run(main())
