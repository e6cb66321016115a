"""What watching costs, and how soon a reader sees the line move: run with `make bench-watch`. Prints tables, and says
where a figure misses its target.

A worker takes one message after the other and acks the one before in the same call, so often a second; each such call
moves the head. Watchers stand over the whole line, one message and one stream each. They are read by a process of their
own, and the worker is this one: with the service and the store, four processes.

A lag is the time from when the worker *sent* the call that made an update due until the reader had it: a little more
than from the store's answer. Due is what the protocol says: among the first 20 every step, and so is being worked on
and the end; farther back a step of a tenth, not before poll_min.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

import psutil

from bench.crowd import FINISHED, LEASED, Crowd, Opened, Order, Told, crowds
from bench.rig import Bench, StoreWork, Stub, percentile, span, started
from bench.tables import no_arguments
from headway.v1 import queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headwayd.domain.hints import poll_hints
from headwayd.domain.model import Policy
from headwayd.domain.places import NEAR
from headwayd.engine.watching.telling import step_below

RUNS = 3
MOVES_PER_S, MOVING_S = 100, 12.0
LENGTH = 12_000  # of the line at the start; the moves take some of it
# By default those farther back are told of a step less often, up to once a minute; here once a second, wherever.
OFTEN = replace(Policy(), poll_per_position_ms=0)
WATCHERS = (0, 10, 1_000, 10_000)
MANY, WAVE = 100_000, 2_000
BATCH = 1_000
LAG_TARGET_MS, MEMORY_TARGET_KB = 250.0, 32.0


@dataclass(frozen=True)
class Moves:
    """When the worker sent the call of each head move (seconds since 1970), and what the store did for all of them."""

    policy: Policy
    sent: Sequence[float]
    work: StoreWork
    took_s: float


@dataclass(frozen=True)
class Run:
    """One line of the first table."""

    watchers: int
    opened: Opened
    memory_kb: float
    moves: Moves
    near_ms: Sequence[float]
    far_ms: Sequence[float]


async def fill(stub: Stub, queue: str, count: int, policy: Policy) -> None:
    """A queue with so many messages; the id of each is its number from the head, from 1 on."""
    poll = queue_pb2.Poll(per_position=span(timedelta(milliseconds=policy.poll_per_position_ms)))
    await stub.Create(pb.CreateRequest(queue=queue, policy=queue_pb2.Policy(poll=poll)))
    for start in range(1, count + 1, BATCH):
        messages = [Message(id=str(n), payload=b"x" * 100) for n in range(start, min(start + BATCH, count + 1))]
        await stub.Put(pb.PutRequest(queue=queue, messages=messages))


async def move(bench: Bench, queue: str, policy: Policy) -> Moves:
    """Moves the head at its pace. What another call could not make good in time is made good at once."""
    stub, sent, leases = bench.stubs[0], list[float](), list[str]()
    before, began = StoreWork.of(bench.raw), time.perf_counter()
    for n in range(int(MOVING_S * MOVES_PER_S)):
        await asyncio.sleep(max(began + n / MOVES_PER_S - time.perf_counter(), 0))
        sent.append(time.time())
        answer = await stub.Get(pb.GetRequest(queue=queue, ack=leases))
        leases = [delivery.lease for delivery in answer.deliveries]
    took_s = time.perf_counter() - began
    return Moves(policy, sent, StoreWork.of(bench.raw) - before, took_s)


def lags_ms(told: Sequence[Told], moves: Moves) -> tuple[list[float], list[float]]:
    """Of updates that a head move made due: those among the first 20 and beyond, and those farther back."""
    by_id = defaultdict[str, list[Told]](list)
    for one in told:
        by_id[one.id].append(one)
    near, far = list[float](), list[float]()
    for of_one in by_id.values():
        for before, one in pairwise(of_one):
            due_at, is_near = _due(before, one, moves)
            if due_at is not None:
                (near if is_near else far).append(max(one.at - due_at, 0.0) * 1_000)
    return near, far


def _due(before: Told, one: Told, moves: Moves) -> tuple[float | None, bool]:
    """When this update was due, None if no head move made it so; and whether it is one of those told at once. The n-th
    move took message n, and acked the one before it: after it message m is at m - n."""
    number, sent = int(one.id), moves.sent
    if one.position == FINISHED:
        return _sent(number + 1, sent), True
    if one.position == LEASED:
        return _sent(number, sent), True
    if one.position == before.position:
        return None, False  # told again at poll_max
    if before.position <= NEAR:
        return _sent(number - before.position + 1, sent), True
    if one.position <= NEAR:
        return _sent(number - NEAR, sent), True
    step = step_below(before.position)
    if one.position > step:
        return None, False  # poll_max, too: the line has moved, but not far enough
    hints = poll_hints(moves.policy, before.position)
    moved_at = _sent(number - step, sent)
    return moved_at and max(moved_at, before.at + hints.poll_min_ms / 1_000), False


def _sent(move: int, sent: Sequence[float]) -> float | None:
    return sent[move - 1] if 1 <= move <= len(sent) else None


def rss_kb(pid: int) -> float:
    """The memory of a process."""
    return psutil.Process(pid).memory_info().rss / 1024


async def watched(bench: Bench, watchers: int, policy: Policy) -> Run:
    """So many watchers of a line that moves, each message as likely to be watched as the next."""
    service, queue = bench.services[0], "watched"
    await fill(bench.stubs[0], queue, LENGTH, policy)
    numbers = range(1, LENGTH + 1, max(LENGTH // watchers, 1)) if watchers else ()
    groups = [[str(n)] for n in list(numbers)[:watchers]]
    async with crowds(Order(service.address, queue, groups)) as [crowd]:
        before_kb = rss_kb(service.pid)
        opened = await crowd.open()
        await asyncio.sleep(1)
        memory_kb = (rss_kb(service.pid) - before_kb) / max(watchers, 1)
        moves = await move(bench, queue, policy)
        await asyncio.sleep(1)
        told, errors = await crowd.end()
    assert not errors, errors
    return Run(watchers, opened, memory_kb, moves, *lags_ms(told, moves))


def row(runs: Sequence[Run]) -> str:
    """Medians of runs with the same number of watchers."""

    def of(values: Iterator[float]) -> float:
        return statistics.median(values)

    def lag(which: str, share: float) -> float:
        lags = [getattr(run, which) for run in runs]
        return of(percentile(each, share) for each in lags) if all(lags) else math.nan

    per_move = [(run.moves.work, len(run.moves.sent)) for run in runs]
    lags = [lag("near_ms", 0.5), lag("near_ms", 0.99), lag("far_ms", 0.5), lag("far_ms", 0.99)]
    memory_kb = of(run.memory_kb for run in runs)
    verdict = _verdict(lags)
    if runs[0].watchers >= 10_000 and memory_kb > MEMORY_TARGET_KB:
        verdict += f"  MISSES {MEMORY_TARGET_KB:.0f} KB"
    cells = [
        f"{runs[0].watchers:8}",
        f"{of(len(run.moves.sent) / run.moves.took_s for run in runs):8.1f}",
        f"{of(work.steps / moves for work, moves in per_move):8.2f}",
        f"{of(work.commands / moves for work, moves in per_move):8.1f}",
        f"{of(work.steps_us / moves for work, moves in per_move):8.0f}",
        *map(_shown, lags),
        f"{of(run.opened.took_s for run in runs):8.2f}",
        f"{sum(sum(run.opened.refused.values()) for run in runs):8}",
        f"{memory_kb:8.1f}" if runs[0].watchers >= 1_000 else f"{'':8}",
    ]
    return " ".join(cells) + verdict


def _shown(lag_ms: float) -> str:
    return f"{'-' if math.isnan(lag_ms) else format(lag_ms, '.1f'):>8}"  # none was due


def _verdict(lags_ms: Sequence[float]) -> str:
    is_missed = any(value >= LAG_TARGET_MS for value in lags_ms)
    return f"  MISSES {LAG_TARGET_MS:.0f} ms" if is_missed else ""


async def one_process() -> None:
    """The first table. Every run has a service of its own: memory that was used once is not taken twice."""
    print(f"{RUNS} runs, medians; {os.cpu_count()} cores for service, store, worker and readers; {LENGTH} in line")
    print(
        f"{'':8} {'head':>8} {'per head move':^26} {'near: lag, ms':^17} {'far: lag, ms':^17} {'all open at once':^26}"
    )
    heads = ("watchers", "moves/s", "steps", "commands", "µs", "p50", "p99", "p50", "p99", "s", "refused", "KB each")
    print(" ".join(f"{head:>8}" for head in heads))
    for watchers, policy in (*((count, Policy()) for count in WATCHERS), (WATCHERS[-1], OFTEN)):
        if policy == OFTEN:
            print("told of steps once a second, wherever they stand:")
        runs = []
        for _ in range(RUNS):
            async with started(1) as bench:
                runs.append(await watched(bench, watchers, policy))
        print(row(runs), flush=True)


async def two_processes(ids_each: int) -> None:
    """MANY messages watched over two services, so many on each stream; measured once."""
    streams = MANY // ids_each
    async with started(2, HEADWAY_MAX_RUNNING_CALLS=str(MANY)) as bench:
        await fill(bench.stubs[0], "many", MANY, Policy())
        orders = []
        for n, service in enumerate(bench.services):
            numbers = range(1 + n, MANY + 1, 2)  # every other one
            groups = [[str(m) for m in numbers[at : at + ids_each]] for at in range(0, len(numbers), ids_each)]
            orders.append(Order(service.address, "many", groups, wave=max(WAVE // ids_each, 1)))
        async with crowds(*orders) as them:
            before_kb = [rss_kb(service.pid) for service in bench.services]
            opened = await asyncio.gather(*(crowd.open() for crowd in them))
            await asyncio.sleep(2)
            used_kb = [rss_kb(service.pid) - before for service, before in zip(bench.services, before_kb, strict=True)]
            moves = await move(bench, "many", Policy())
            await asyncio.sleep(2)
            told, errors = await _all_told(them)
    near, far = lags_ms(told, moves)
    late = [percentile(values, share) if values else math.nan for values in (near, far) for share in (0.5, 0.99)]
    cells = [f"{streams:8}", f"{len(moves.sent) / moves.took_s:8.1f}", f"{moves.work.steps / len(moves.sent):8.2f}"]
    cells += map(_shown, late)
    cells += [f"{max(one.took_s for one in opened):8.1f}", f"{sum(used_kb) / 1024:8.0f}", f"{sum(used_kb) / MANY:8.1f}"]
    print(" ".join(cells) + _verdict(late) + (f"\n  ended early: {dict(errors)}" if errors else ""), flush=True)


async def _all_told(them: Sequence[Crowd]) -> tuple[list[Told], Counter[str]]:
    told, errors = list[Told](), Counter[str]()
    for of_one, with_errors in await asyncio.gather(*(crowd.end() for crowd in them)):
        told += of_one
        errors += with_errors
    return told, errors


async def main() -> None:
    """Runs everything and prints the tables."""
    await one_process()
    print(f"\n{MANY} messages watched over two processes, {WAVE} at a time in each; once; six processes")
    heads = ("streams", "moves/s", "steps", "near p50", "near p99", "far p50", "far p99", "open, s", "MB", "KB each")
    print(" ".join(f"{head:>8}" for head in heads))
    for ids_each in (100, 1):
        await two_processes(ids_each)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
