"""What metrics cost where calls are served, and what a scrape costs. Part of `make bench`. Prints tables; judges
nothing.

The first table is of the counting alone, in this process: the same handlers and steps with and without it, around
behaviour that does nothing. The second is of live services, one that counts and two that do not: the processor time
that each takes for a call, in turns, so that what else the machine does meets all. How far the two alike are apart
tells how much of a difference means anything.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import httpx
import uvloop

from bench.rig import Bench, cpu_s, each_us, started
from bench.tables import no_arguments
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headwayd.domain.leases import Run, nonce_of, texts
from headwayd.domain.model import Delivery, GetOrder, NewMessage, PutCode, PutOutcome, Settled, Settlement
from headwayd.engine.counting.counted_store import counted
from headwayd.engine.counting.counts import Counts
from headwayd.engine.ports import GetStep, PutStep, Store
from headwayd.rpc.counting import _unary

ROUNDS = 7
TIMES = 20_000
CALLS = 6_000  # of a live service in each round: as many Puts, Gets and Acks together
AT_ONCE = 32
QUEUES = 200
HTTP = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}


class _Idle:
    """A store whose steps are made before."""

    def __init__(self, count: int) -> None:
        names = texts(Run(bytes(8), nonce_of(bytes(16), 1), range(1, 1 + count)))
        self.put_step = PutStep(outcomes=[PutOutcome(PutCode.QUEUED, name, 1, 1) for name in names])
        deliveries = [Delivery(name, b"", b"", name, 0, 1, 1, 0, 20) for name in names]
        self.get_step = GetStep(deliveries=deliveries, settled=())
        self.settled = [Settlement(name, Settled.ACKED) for name in names]

    async def put(self, queue: str, messages: Sequence[NewMessage], **_: object) -> PutStep:
        return self.put_step

    async def get(self, order: GetOrder, **_: object) -> GetStep:
        return self.get_step

    async def ack(self, queue: str, leases: Sequence[str], **_: object) -> Sequence[Settlement]:
        return self.settled


async def _cycle(store: Any) -> None:
    await store.put("jobs", (), budget_s=1.0)
    await store.get(GetOrder("jobs"), budget_s=1.0)
    await store.ack("jobs", (), budget_s=1.0)


async def alone() -> None:
    """The first table."""
    counts = Counts(most_queues=QUEUES)

    async def behaviour(request: object, context: object) -> object:
        return request

    handle = cast("Callable[[object, object], Awaitable[object]]", _unary(behaviour, "Put", counts))
    added = await each_us(lambda: handle(0, 0), TIMES) - await each_us(lambda: behaviour(0, 0), TIMES)
    print("| counting alone | added |\n|---|---|")
    print(f"| (to await what does nothing, for comparison) | {await each_us(lambda: behaviour(0, 0), TIMES):.2f} µs |")
    print(f"| a call: how it ended, how long it took | {added:.2f} µs |")
    for count in (1, 10, 100):
        idle = _Idle(count)
        store = counted(cast(Store, idle), counts)
        times = TIMES // count
        added = await each_us(lambda: _cycle(store), times) - await each_us(lambda: _cycle(idle), times)  # noqa: B023
        per = added / (3 * count)
        print(f"| Put, Get and Ack of {count} each | {added:.2f} µs, {per:.2f} µs for each message of a step |")


async def _load(bench: Bench) -> None:
    """Calls of one message each, many at once."""
    stub = bench.stubs[0]

    async def one() -> None:
        for _ in range(CALLS // 3 // AT_ONCE):
            await stub.Put(pb.PutRequest(queue="jobs", messages=[Message(payload=b"x")]), timeout=20)
            answer = await stub.Get(pb.GetRequest(queue="jobs"), timeout=20)
            await stub.Ack(pb.AckRequest(queue="jobs", leases=[one.lease for one in answer.deliveries]), timeout=20)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def live() -> None:
    """The second table."""
    async with started(1) as without, started(1) as another, started(1, **HTTP) as counting:
        benches = {"without metrics": without, "without metrics, another": another, "with metrics": counting}
        used: dict[str, list[float]] = {name: [] for name in benches}
        for bench in benches.values():
            await bench.stubs[0].Create(pb.CreateRequest(queue="jobs"))
            await _load(bench)
        for _ in range(ROUNDS):
            for name, bench in benches.items():
                before = cpu_s(bench.services[0].pid)
                await _load(bench)
                used[name].append((cpu_s(bench.services[0].pid) - before) / CALLS * 1e6)
        print("\n| processor time of a service for a call of one message | median | least |\n|---|---|---|")
        for name, each in used.items():
            print(f"| {name} | {statistics.median(each):.0f} µs | {min(each):.0f} µs |")
        await _scrapes(counting)


async def _scrapes(bench: Bench) -> None:
    """What it costs to be scraped, with as many queues as have series of their own."""
    stub, service = bench.stubs[0], bench.services[0]
    for number in range(QUEUES):
        queue = f"queue-{number}"
        await stub.Create(pb.CreateRequest(queue=queue))
        await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x")]))
        leases = [one.lease for one in (await stub.Get(pb.GetRequest(queue=queue))).deliveries]
        await stub.Ack(pb.AckRequest(queue=queue, leases=leases))
    print(f"\n| scrapes of {QUEUES} queues | took | processor time of the service | bytes |\n|---|---|---|---|")
    async with httpx.AsyncClient(timeout=20) as client:
        for name, pause_s in (("with a look at the store", 3.5), ("without, soon after another", 0.0)):
            took, used, size = [], [], 0
            for _ in range(ROUNDS):
                await asyncio.sleep(pause_s)
                before, began = cpu_s(service.pid), time.perf_counter()
                size = len((await client.get(f"{service.http}/metrics")).content)
                took.append((time.perf_counter() - began) * 1e3)
                used.append((cpu_s(service.pid) - before) * 1e3)
            print(f"| {name} | {statistics.median(took):.0f} ms | {statistics.median(used):.0f} ms | {size:,} |")


async def main() -> None:
    """All tables."""
    await alone()
    await live()


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    uvloop.run(main())
