"""What the store spends on each message, by batch: part of `make bench`. Prints a table; judges nothing.

Timed by the store itself (INFO commandstats), without the way there. Messages have 100 bytes; one client, one call
after the other, so nothing is joined. At least STANDING messages wait all the time.
"""

from __future__ import annotations

import asyncio
import statistics

from bench.rig import Bench, StoreWork, started
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

RUNS = 5
CALLS_OF_BATCH = {1: 300, 10: 150, 100: 50, 1_000: 5}  # so many of each kind in a run
STANDING = 5_000
CALLS = ("put", "put with ids", "get", "ack")


async def run(bench: Bench, batch: int, number: int) -> dict[str, float]:
    """Microseconds per message of each call."""
    stub, queue = bench.stubs[0], f"batch-{batch}-{number}"
    await stub.Create(pb.CreateRequest(queue=queue))
    for _ in range(STANDING // 1_000):
        await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x" * 100)] * 1_000))
    spent = dict.fromkeys(CALLS, 0.0)
    rounds = range(CALLS_OF_BATCH[batch])

    async def put(name: str, with_ids: bool) -> None:
        before = StoreWork.of(bench.raw)
        for n in rounds:
            ids = [f"{name}-{n * batch + m}" if with_ids else "" for m in range(batch)]
            await stub.Put(pb.PutRequest(queue=queue, messages=[Message(id=id_, payload=b"x" * 100) for id_ in ids]))
        spent[name] = (StoreWork.of(bench.raw) - before).steps_us

    async def get_and_ack() -> None:
        before = StoreWork.of(bench.raw)
        answers = [await stub.Get(pb.GetRequest(queue=queue, max_messages=batch)) for _ in rounds]
        between = StoreWork.of(bench.raw)
        for answer in answers:
            await stub.Ack(pb.AckRequest(queue=queue, leases=[delivery.lease for delivery in answer.deliveries]))
        spent["get"] = (between - before).steps_us
        spent["ack"] = (StoreWork.of(bench.raw) - between).steps_us

    await put("put", False)
    await get_and_ack()
    await put("put with ids", True)
    return {name: us / (batch * len(rounds)) for name, us in spent.items()}


async def main() -> None:
    """Runs everything and prints the table."""
    print(
        f"\n{'store, µs per message, median of ' + str(RUNS) + ' runs':40}",
        *(f"{'batch ' + str(n):>11}" for n in CALLS_OF_BATCH),
    )
    async with started(1) as bench:
        table = {batch: [await run(bench, batch, n) for n in range(RUNS)] for batch in CALLS_OF_BATCH}
    for name in CALLS:
        medians = (statistics.median(one[name] for one in table[batch]) for batch in CALLS_OF_BATCH)
        print(f"{name:40}", *(f"{value:11.1f}" for value in medians), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
