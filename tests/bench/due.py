"""What time brings, how late it comes, and what it costs until then: run with `make bench`. Prints tables, and says
where a figure misses its target.

Every instant is this machine's clock, which the store reads, too; lateness is seen by the client that is given the
message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import grpc

from bench.rig import LONG, PREFIX, Bench, cost_of, percentile, span, started
from bench.tables import no_arguments
from harness import eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

ROUNDS = 200
GAP_MS = 60  # from one instant to the next: a queue is idle in between
DELAYED = 1_000
IDLE_S = 15.0
FLOOD, BATCH = 100_000, 1_000
TRICKLE, TRICKLE_BATCH, TRICKLE_S = 20_000, 10, 10.0  # leases that lapse one step after the other, over so long
FLOOD_IN_S = 40.0  # from the first put of the flood until it is due: they must all be in by then
BESIDE_EVERY_MS, BESIDE_S = 10, 20.0
LAPSE_TARGET_MS, DUE_TARGET_MS, FLOOD_TARGET_MS, COMMANDS_TARGET, CORE_TARGET = 500.0, 250.0, 250.0, 20.0, 5.0


def now_ms() -> float:
    """The clock that the store reads."""
    return time.time() * 1_000


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    late_ms: Sequence[float]
    target_ms: float

    def __str__(self) -> str:
        p50, p99, most = percentile(self.late_ms, 0.5), percentile(self.late_ms, 0.99), max(self.late_ms)
        verdict = "" if p99 <= self.target_ms else f"  MISSES {self.target_ms:.0f}"
        return f"{self.name:62.62} {p50:8.2f} {p99:8.2f} {most:8.2f}{verdict}"


async def _leased(bench: Bench, queue: str, instants: Sequence[float]) -> list[float]:
    """How late after each instant a Get that waits on the second service is given a message."""
    late = []
    for instant in instants:
        answer = await bench.stubs[1].Get(pb.GetRequest(queue=queue, wait=LONG))
        late.append(now_ms() - instant)
        await bench.stubs[1].Ack(pb.AckRequest(queue=queue, leases=[answer.deliveries[0].lease]))
    return late


async def lapsing(bench: Bench) -> Row:
    """From the deadline of a lease that nobody settles."""
    queue, stub = "lapse", bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    await stub.Put(pb.PutRequest(queue=queue, messages=[Message(payload=b"x")] * ROUNDS))
    deadlines = []
    for n in range(ROUNDS):
        lease = span(timedelta(milliseconds=2_000 + GAP_MS * n))
        answer = await stub.Get(pb.GetRequest(queue=queue, lease=lease))
        deadlines.append(answer.deliveries[0].lease_expires_at.ToMilliseconds())
    return Row("lease lapsed → delivered again", await _leased(bench, queue, deadlines), LAPSE_TARGET_MS)


async def falling_due(bench: Bench) -> Row:
    """From the instant at which a delayed message is due."""
    queue, stub = "due", bench.stubs[0]
    await stub.Create(pb.CreateRequest(queue=queue))
    first = now_ms() + 1_000
    instants = [int(first + GAP_MS * n) for n in range(ROUNDS)]
    messages = [Message(payload=b"x") for _ in instants]
    for message, instant in zip(messages, instants, strict=True):
        message.not_before.FromMilliseconds(instant)
    await stub.Put(pb.PutRequest(queue=queue, messages=messages))
    return Row("due → delivered", await _leased(bench, queue, instants), DUE_TARGET_MS)


async def idle(bench: Bench, queues: int) -> str:
    """What DELAYED messages in so many queues cost while none of them is due."""
    stub = bench.stubs[0]
    later = span(timedelta(hours=1))
    for n in range(queues):
        await stub.Create(pb.CreateRequest(queue=f"idle-{queues}-{n}"))
        messages = [Message(payload=b"x", delay=later)] * (DELAYED // queues)
        await stub.Put(pb.PutRequest(queue=f"idle-{queues}-{n}", messages=messages))
    await asyncio.sleep(2)  # whatever the puts set going has ended
    cost = await cost_of(bench, IDLE_S)
    core = sum(cost.services) + cost.store
    verdict = "" if cost.commands < COMMANDS_TARGET and core < CORE_TARGET else "  MISSES 20 cmd/s, 5 %"
    shares = " ".join(f"{share:8.2f}" for share in (*cost.services, cost.store))
    name = f"{DELAYED} delayed in {queues} queue(s), nothing due" if queues else "nothing at all"
    return f"{name:62} {cost.commands:8.1f} {shares} {core:8.2f}{verdict}"


async def _put_flood(bench: Bench, due: int) -> None:
    """So many messages that all fall due at one instant."""
    message = Message(payload=b"x" * 100)
    message.not_before.FromMilliseconds(due)
    for _ in range(FLOOD // BATCH):
        await bench.stubs[0].Put(pb.PutRequest(queue="flood", messages=[message] * BATCH))


async def _lease_flood(bench: Bench, due: int) -> None:
    """So many leases that all lapse at about one instant."""
    message = Message(payload=b"x" * 100)
    for _ in range(FLOOD // BATCH):
        await bench.stubs[0].Put(pb.PutRequest(queue="flood", messages=[message] * BATCH))
    for _ in range(FLOOD // BATCH):
        lease = span(timedelta(milliseconds=int(due - now_ms())))
        answer = await bench.stubs[0].Get(pb.GetRequest(queue="flood", max_messages=BATCH, lease=lease))
        assert len(answer.deliveries) == BATCH


async def _lease_trickle(bench: Bench, due: int) -> None:
    """Leases that lapse one step after the other, from that instant on, in the order of their messages: of workers that
    all hung at once, and nobody is left to take what comes back."""
    message = Message(payload=b"x" * 1_024)
    for _ in range(TRICKLE // BATCH):
        await bench.stubs[0].Put(pb.PutRequest(queue="flood", messages=[message] * BATCH))
    for n in range(TRICKLE // TRICKLE_BATCH):
        deadline = due + n * TRICKLE_BATCH / TRICKLE * TRICKLE_S * 1_000
        lease = span(timedelta(milliseconds=int(deadline - now_ms())))
        await bench.stubs[0].Get(pb.GetRequest(queue="flood", max_messages=TRICKLE_BATCH, lease=lease))


async def flood(
    bench: Bench, make: Callable[[Bench, int], Awaitable[None]], what: str, count: int
) -> tuple[Row, Row, str]:
    """How late another queue's are while a flood of so many messages moves into its line, and how long that takes."""
    stub = bench.stubs[0]
    for queue in ("flood", "beside"):
        await stub.Create(pb.CreateRequest(queue=queue))
    due = int(now_ms() + FLOOD_IN_S * 1_000)
    await make(bench, due)
    left_s = (due - now_ms()) / 1_000
    if left_s < 1:
        raise SystemExit(f"the flood took too long to make: due {-left_s:.1f} s ago")
    instants = [due - 500 + BESIDE_EVERY_MS * n for n in range(int(BESIDE_S * 1_000 / BESIDE_EVERY_MS))]
    messages = [Message(payload=b"%d" % number) for number in range(len(instants))]
    for one, instant in zip(messages, instants, strict=True):
        one.not_before.FromMilliseconds(instant)
    for start in range(0, len(messages), BATCH):
        await stub.Put(pb.PutRequest(queue="beside", messages=messages[start : start + BATCH]))

    async def is_moved() -> float:
        is_all = await asyncio.to_thread(bench.raw.llen, f"{PREFIX}:flood") == count
        return now_ms() if is_all else 0.0

    bench.raw.config_set("slowlog-log-slower-than", 1_000)
    bench.raw.slowlog_reset()
    moving = asyncio.create_task(eventually(is_moved, within=300))
    late, failed = await _in_bunches(bench, instants)
    ended = await moving
    during = [value for value, instant in late if due <= instant <= ended]
    after = [value for value, instant in late if not due <= instant <= ended] or [0.0]
    longest_ms = max((entry["duration"] for entry in bench.raw.slowlog_get(128)), default=0) / 1_000
    told = (
        f"{count} {what} were all in the line {(ended - due) / 1_000:.2f} s later; {len(during)} fell due beside,"
        f" {failed} calls failed; the longest step took {longest_ms:.0f} ms"
    )
    return (
        Row(f"another queue: due → delivered, while {what} move", during, FLOOD_TARGET_MS),
        Row("the same, before and after", after, DUE_TARGET_MS),
        told,
    )


async def _in_bunches(bench: Bench, instants: Sequence[float]) -> tuple[list[tuple[float, float]], int]:
    """How late each of the messages numbered in their payloads is, and how often a call failed. Takes all that is
    there, so that the client is not what is late."""
    late: dict[int, float] = {}
    failed = 0
    leases: list[str] = []
    while len(late) < len(instants):
        request = pb.GetRequest(queue="beside", wait=LONG, max_messages=100, ack=leases)
        try:
            answer = await bench.stubs[1].Get(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            failed += 1  # what it was given comes again when its lease has lapsed, and is as late as that
            continue
        seen = now_ms()
        for delivery in answer.deliveries:
            number = int(delivery.message.payload)
            late.setdefault(number, seen - instants[number])
        leases = [delivery.lease for delivery in answer.deliveries]
    await bench.stubs[1].Ack(pb.AckRequest(queue="beside", leases=leases))
    return [(late[number], instant) for number, instant in enumerate(instants)], failed


async def main() -> None:
    """Runs everything and prints the tables."""
    async with started() as bench:
        print(f"{'1,000 delayed messages':62} {'cmd/s':>8} {'% core 1':>8} {'% core 2':>8} {'% store':>8} {'% all':>8}")
        for queues in (0, 1, DELAYED):
            print(await idle(bench, queues), flush=True)
    async with started() as bench:
        print(f"\n{'milliseconds late':62} {'p50':>8} {'p99':>8} {'most':>8}")
        print(await lapsing(bench))
        print(await falling_due(bench), flush=True)
    floods = (
        (_put_flood, "messages due at once", FLOOD),
        (_lease_flood, "leases lapsed at once", FLOOD),
        (_lease_trickle, f"leases lapsed within {TRICKLE_S:.0f} s", TRICKLE),
    )
    for make, what, count in floods:
        async with started() as bench:
            during, besides, told = await flood(bench, make, what, count)
            print(f"{during}\n{besides}\n  {told}", flush=True)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
