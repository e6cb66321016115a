"""What the position of one message costs in a line of a million, beside LPOS on the same line: part of
`make bench-watch`. Prints a table, and says where a figure misses its target.

Both are timed by the store itself (SLOWLOG), without the way there: our places script for one message, and LPOS for the
element of the same message. LPOS searches from the head; it does not know which elements are withdrawn, so its rank is
not even the position.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import redis

from bench.rig import PREFIX, Bench, percentile, started
from bench.tables import no_arguments
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headwayd.store.scripts import all_scripts

LENGTH, WITHDRAWN, BATCH = 1_000_000, 10_000, 1_000
ASKED = 1_000
_MOST_LOGGED = 1_000_000
TARGET_MS = 1.0
QUEUE, KEY = "million", f"{PREFIX}:million"


def payload(number: int) -> bytes:
    """Of the n-th message; the whole element, because a message that is only a payload is stored bare."""
    return b"message %07d" % number


async def fill(bench: Bench, chance: random.Random) -> dict[int, str]:
    """Makes the line; the ids of those still in it, by number."""
    stub, ids = bench.stubs[0], dict[int, str]()
    await stub.Create(pb.CreateRequest(queue=QUEUE))
    for start in range(0, LENGTH, BATCH):
        messages = [Message(payload=payload(n)) for n in range(start, start + BATCH)]
        answer = await stub.Put(pb.PutRequest(queue=QUEUE, messages=messages))
        ids |= {start + n: result.id for n, result in enumerate(answer.results)}
    withdrawn = chance.sample(range(LENGTH), WITHDRAWN)
    for start in range(0, WITHDRAWN, BATCH):
        those = [ids.pop(n) for n in withdrawn[start : start + BATCH]]
        await stub.Withdraw(pb.WithdrawRequest(queue=QUEUE, message_ids=those))
    return ids


def timed_ms(raw: redis.Redis, calls: Sequence[Callable[[], object]]) -> list[float]:
    """What the store says that each of these calls took it."""
    raw.config_set("slowlog-max-len", _MOST_LOGGED)  # commands in scripts are logged, too
    raw.config_set("slowlog-log-slower-than", 0)
    raw.slowlog_reset()
    for call in calls:
        call()
    raw.config_set("slowlog-log-slower-than", -1)
    entries = raw.slowlog_get(_MOST_LOGGED)
    taken = [entry["duration"] / 1_000 for entry in entries if entry["command"].split()[0] in {b"EVALSHA", b"LPOS"}]
    assert len(taken) == len(calls), len(taken)
    return taken


def ask(raw: redis.Redis, ids: dict[int, str], chance: random.Random) -> tuple[list[float], list[float]]:
    """Times of both, for the same messages anywhere in the line; their answers are compared first."""
    sha = raw.script_load(all_scripts()["places"].text)
    waiting = sorted(ids)
    rank = {number: at for at, number in enumerate(waiting, 1)}
    asked = chance.sample(waiting, ASKED)

    def ours(number: int) -> bytes:
        reply: list[bytes] = raw.evalsha(sha, 1, KEY, "echo", f"{PREFIX}:x:", "0", 0, ids[number])
        return reply[-7]

    def theirs(number: int) -> int:
        found = raw.lpos(KEY, payload(number).decode(), rank=-1)
        assert isinstance(found, int)
        return found

    for number in asked[:10]:
        assert int(ours(number)) == rank[number], number
        assert raw.lindex(KEY, theirs(number)) == payload(number)
    return (
        timed_ms(raw, [lambda number=number: ours(number) for number in asked]),  # type: ignore[misc]
        timed_ms(raw, [lambda number=number: theirs(number) for number in asked]),  # type: ignore[misc]
    )


async def main() -> None:
    """Runs everything and prints the table."""
    chance = random.Random(5)
    async with started(1) as bench:
        ids = await fill(bench, chance)
        ours, theirs = await asyncio.to_thread(ask, bench.raw, ids, chance)
    title = f"position in a line of {LENGTH}, {WITHDRAWN} withdrawn: store's ms"
    print(f"\n{title:62} {'p50':>8} {'p99':>8} {'most':>8}")
    for name, values in (("places.lua", ours), ("LPOS", theirs)):
        print(f"{name:62} {percentile(values, 0.5):8.3f} {percentile(values, 0.99):8.3f} {max(values):8.3f}")
    p50 = percentile(theirs, 0.5) / percentile(ours, 0.5)
    p99 = percentile(theirs, 0.99) / percentile(ours, 0.99)
    verdict = "" if percentile(ours, 0.99) < TARGET_MS else f"  MISSES {TARGET_MS:.0f}"
    print(f"{'LPOS takes so many times as long':62} {p50:8.0f} {p99:8.0f}{verdict}", flush=True)


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
