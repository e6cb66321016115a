"""What the store spends on each message, by batch: part of `make bench`. Prints a table; judges nothing.

Timed by the store itself (INFO commandstats), without the way there. Messages have 100 bytes; one client, one call
after the other, so nothing is joined. At least STANDING messages wait all the time.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.duration_pb2 import Duration

from bench.rig import Bench, StoreWork, started
from bench.tables import no_arguments
from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import queue_service_pb2 as pb
from headway.v1.admin_service_pb2_grpc import AdminServiceStub
from headway.v1.message_pb2 import Message
from headway.v1.queue_pb2 import Policy, Retry

if TYPE_CHECKING:
    from headway.v1.admin_service_pb2_grpc import AdminServiceAsyncStub

RUNS = 5
CALLS_OF_BATCH = {1: 300, 10: 150, 100: 50, 1_000: 5}  # so many of each kind in a run
STANDING = 5_000
BODY = b"x" * 100
HOUR = Duration(seconds=3_600)
CALLS = (
    *(
        "put",
        "put with ids",
        "peek",
        "get",
        "list leased",
        "ack",
        "extend",
        "ack, extended before",
        "delay",
        "withdraw",
    ),
    *("delay, dead by it", "list dead", "redrive", "purge, all at once"),
)


class Run:
    """All calls with batches of one size on a queue of their own. `spent` is the store's microseconds for each kind."""

    def __init__(self, bench: Bench, admin: AdminServiceAsyncStub, batch: int, number: int) -> None:
        self.spent: dict[str, float] = {}
        self._bench = bench
        self._admin = admin
        self._batch = batch
        self._rounds = range(CALLS_OF_BATCH[batch])
        self._queue = f"batch-{batch}-{number}"

    async def _timed(self, name: str, calls: Iterable[Awaitable[Any]]) -> list[Any]:
        before = StoreWork.of(self._bench.raw)
        answers = [await call for call in calls]
        self.spent[name] = (StoreWork.of(self._bench.raw) - before).steps_us / (self._batch * len(self._rounds))
        return answers

    async def _leased(self, name: str) -> list[list[str]]:
        get = pb.GetRequest(queue=self._queue, max_messages=self._batch)
        answers = await self._timed(name, (self._bench.stubs[0].Get(get) for _ in self._rounds))
        batches = [[delivery.lease for delivery in answer.deliveries] for answer in answers]
        assert all(len(leases) == self._batch for leases in batches)
        return batches

    async def _put(self, name: str, batches: Iterable[list[str]]) -> None:
        puts = (
            pb.PutRequest(queue=self._queue, messages=[Message(id=one, payload=BODY) for one in ids]) for ids in batches
        )
        await self._timed(name, map(self._bench.stubs[0].Put, puts))

    async def all(self) -> dict[str, float]:
        """Microseconds per message of each call."""
        stub, queue = self._bench.stubs[0], self._queue
        await stub.Create(pb.CreateRequest(queue=queue))
        for _ in range(3 * STANDING // 1_000):  # two thirds of them are got below
            await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=BODY)] * 1_000))
        ids = [[f"{n}-{m}" for m in range(self._batch)] for n in self._rounds]
        await self._put("put", [[""] * self._batch for _ in self._rounds])
        leases = await self._leased("get")
        listing = admin_pb.ListLeasedRequest(queue=queue, max_messages=self._batch)
        await self._timed("list leased", (self._admin.ListLeased(listing) for _ in self._rounds))
        await self._timed("ack", (stub.Ack(pb.AckRequest(queue=queue, leases=batch)) for batch in leases))
        leases = await self._leased("get again")
        extends = (pb.ExtendRequest(queue=queue, leases=batch, lease=HOUR) for batch in leases)
        await self._timed("extend", map(stub.Extend, extends))
        acks = (pb.AckRequest(queue=queue, leases=batch) for batch in leases)
        await self._timed("ack, extended before", map(stub.Ack, acks))
        await self._put("put with ids", ids)
        peek = pb.PeekRequest(queue=queue, max_messages=self._batch)
        await self._timed("peek", (stub.Peek(peek) for _ in self._rounds))
        delays = [
            pb.DelayRequest(queue=queue, leases=batch, delay=HOUR) for batch in await self._leased("get for delay")
        ]
        await self._timed("delay", map(stub.Delay, delays))
        await self._timed("withdraw", (stub.Withdraw(pb.WithdrawRequest(queue=queue, message_ids=one)) for one in ids))
        await self._die(ids)
        return self.spent

    async def _die(self, ids: list[list[str]]) -> None:
        """Messages die, are looked at, put back, and removed, in another queue."""
        stub, admin = self._bench.stubs[0], self._admin
        queue = self._queue = f"{self._queue}-dying"
        await stub.Create(pb.CreateRequest(queue=queue, policy=Policy(retry=Retry(max_attempts=1))))
        await self._put("put to die", ids)
        fails = [pb.DelayRequest(queue=queue, leases=batch) for batch in await self._leased("get to die")]
        await self._timed("delay, dead by it", map(stub.Delay, fails))
        page = admin_pb.ListDeadRequest(queue=queue, page_size=self._batch)
        await self._timed("list dead", (admin.ListDead(page) for _ in self._rounds))
        await self._timed("redrive", (self._redriven(admin_pb.RedriveRequest(queue=queue, message_ids=m)) for m in ids))
        [purged] = await self._timed("purge, all at once", [admin.Purge(admin_pb.PurgeRequest(queue=queue))])
        assert purged.waiting == self._batch * len(self._rounds)

    async def _redriven(self, order: admin_pb.RedriveRequest) -> None:
        assert [told.redriven async for told in self._admin.Redrive(order)][-1] == self._batch


async def main() -> None:
    """Runs everything and prints the table."""
    print(
        f"\n{'store, µs per message, median of ' + str(RUNS) + ' runs':40}",
        *(f"{'batch ' + str(n):>11}" for n in CALLS_OF_BATCH),
    )
    async with started(1) as bench, grpc.aio.insecure_channel(bench.services[0].address) as channel:
        admin: AdminServiceAsyncStub = AdminServiceStub(channel)
        table = {batch: [await Run(bench, admin, batch, n).all() for n in range(RUNS)] for batch in CALLS_OF_BATCH}
    for name in CALLS:
        medians = (statistics.median(one[name] for one in table[batch]) for batch in CALLS_OF_BATCH)
        print(f"{name:40}", *(f"{value:11.1f}" for value in medians), flush=True)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
