"""No step takes longer because the queue is longer: the same steps on a short queue and on one 500 times as long.

What the store does is compared, not how long a caller waits: how many commands a step's script gives, and, because one
command may walk through all there is, how long the store was busy with it by its own account. Both are medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from integration.desk import BUDGET_S, HOUR_MS, Desk

SHORT, LONG = 200, 100_000
REPEATED = 15
MORE_COMMANDS = 16  # a binary search's
SLOWER, ROOM_US = 2, 400  # machines are shared; one LPOS through 100,000 takes longer than that
PART = 500


@dataclass
class Crowd:
    """A queue in which so many messages wait, and a quarter as many each are leased by themselves, leased many at
    a time, delayed, dead and finished."""

    desk: Desk
    size: int
    leases: list[str] = field(default_factory=list)
    bundled: list[str] = field(default_factory=list)  # leased many at a time, and kept so
    at: int = 0

    async def fill(self) -> None:
        desk, quarter = self.desk, self.size // 4
        await desk.create(limit=2 * LONG, max_attempts=1, remember_ms=HOUR_MS, dedupe_window_ms=HOUR_MS)
        for what in ("dead", "finished", "leased", "delayed"):
            for start in range(0, quarter, PART):
                names = [f"{what}-{n}" for n in range(start, min(start + PART, quarter))]
                await desk.put(*[b"x" * 20] * len(names), ids=names, delay_ms=HOUR_MS if what == "delayed" else 0)
                if what == "delayed":
                    continue
                leases = [delivery.lease for delivery in await desk.take(len(names), lease_ms=HOUR_MS)]
                assert len(leases) == len(names)
                if what == "dead":
                    await desk.give_back(*leases)
                elif what == "finished":
                    await desk.ack(*leases)
                else:
                    self.leases += leases
        for start in range(0, quarter, PART):
            await desk.put(*[b"x" * 20] * min(PART, quarter - start))
            self.bundled += [delivery.lease for delivery in await desk.take(PART, lease_ms=HOUR_MS)]
        assert len(self.bundled) == quarter
        for start in range(0, self.size, PART):
            names = [f"id-{n}" for n in range(start, min(start + PART, self.size))]
            await desk.put(*[b"x" * 20] * len(names), ids=names)
        counts = await desk.counts()
        assert (counts.length, counts.leased, counts.delayed, counts.dead) == (self.size, 2 * quarter, quarter, quarter)

    def number(self) -> int:
        """Another one each time."""
        self.at += 1
        return self.at


Step = Callable[[Crowd], Awaitable[object]]


async def put(crowd: Crowd) -> None:
    await crowd.desk.put(b"x" * 20)


async def put_through_the_gate(crowd: Crowd) -> None:
    await crowd.desk.put_many([b"x" * 20] * 260)


async def put_with_id(crowd: Crowd) -> None:
    await crowd.desk.put(b"x" * 20, ids=[f"new-{crowd.number()}"])


async def put_later(crowd: Crowd) -> None:
    await crowd.desk.put(b"x" * 20, delay_ms=HOUR_MS // 2)


async def get_and_keep(crowd: Crowd) -> None:
    crowd.leases.append((await crowd.desk.take_one(lease_ms=HOUR_MS)).lease)


async def ack_the_oldest_lease(crowd: Crowd) -> None:
    assert await crowd.desk.ack(crowd.leases.pop(0)) == ["ACKED"]


async def ack_one_of_a_bundle(crowd: Crowd) -> None:
    assert await crowd.desk.ack(crowd.bundled.pop(0)) == ["ACKED"]


async def kill(crowd: Crowd) -> None:
    await crowd.desk.give_back(crowd.leases.pop())


async def release(crowd: Crowd) -> None:
    await crowd.desk.store.release(crowd.desk.name, [crowd.leases.pop()], budget_s=BUDGET_S)


async def extend(crowd: Crowd) -> None:
    await crowd.desk.store.extend(crowd.desk.name, [crowd.leases[0]], HOUR_MS, budget_s=BUDGET_S)


async def withdraw_from_the_middle(crowd: Crowd) -> None:
    assert await crowd.desk.withdraw(f"id-{crowd.size // 2 + crowd.number()}") == [""]


async def peek_at_the_middle(crowd: Crowd) -> None:
    await crowd.desk.store.peek(
        crowd.desk.name, from_position=crowd.size // 2, max_messages=1, max_bytes=10**6, budget_s=BUDGET_S
    )


async def places_of_one(crowd: Crowd) -> None:
    await crowd.desk.store.places(crowd.desk.name, ["id-30"], with_shape=False, budget_s=BUDGET_S)


async def describe(crowd: Crowd) -> None:
    await crowd.desk.counts()


async def sweep(crowd: Crowd) -> None:
    await crowd.desk.sweep()


async def list_leased(crowd: Crowd) -> None:
    await crowd.desk.store.list_leased(crowd.desk.name, max_messages=5, budget_s=BUDGET_S)


async def list_dead(crowd: Crowd) -> None:
    await crowd.desk.store.list_dead(crowd.desk.name, page_size=5, page_token="", max_bytes=10**6, budget_s=BUDGET_S)


async def pause_and_go_on(crowd: Crowd) -> None:
    for is_paused in (True, False):
        await crowd.desk.store.set_paused(crowd.desk.name, is_paused, budget_s=BUDGET_S)


STEPS = [
    put,
    put_through_the_gate,
    put_with_id,
    put_later,
    get_and_keep,
    extend,
    ack_the_oldest_lease,
    ack_one_of_a_bundle,
    release,
    kill,
    withdraw_from_the_middle,
    peek_at_the_middle,
    places_of_one,
    describe,
    sweep,
    list_leased,
    list_dead,
    pause_and_go_on,
]


async def cost(crowd: Crowd, step: Step) -> tuple[float, float]:
    """Commands given, and microseconds of the store, of one such step; medians."""
    commands, busy_us = [], []
    for _ in range(REPEATED):
        before, given = crowd.desk.raw.info("commandstats"), crowd.desk.commands()
        await step(crowd)
        commands.append(crowd.desk.commands() - given)
        after = crowd.desk.raw.info("commandstats")
        busy_us.append(after["cmdstat_evalsha"]["usec"] - before.get("cmdstat_evalsha", {"usec": 0})["usec"])
    return statistics.median(commands), statistics.median(busy_us)


@pytest.mark.long
async def test_no_step_grows_with_the_queue(desk: Desk, figure: Callable[[str, object], None]) -> None:
    short, long = Crowd(desk, SHORT), Crowd(Desk(desk.store, desk.raw, f"{desk.name}-long"), LONG)
    grown = {}
    try:
        for crowd in (short, long):
            await crowd.fill()
        for step in STEPS:
            (commands, busy_us), (more_commands, longer_us) = await cost(short, step), await cost(long, step)
            told = f"{commands:.0f} / {more_commands:.0f} commands, {busy_us:.0f} / {longer_us:.0f} µs"
            figure(f"{step.__name__}, {SHORT} / {LONG} messages", told)
            if more_commands > commands + MORE_COMMANDS or longer_us > SLOWER * busy_us + ROOM_US:
                grown[step.__name__] = told
    finally:
        await desk.store.delete(long.desk.name, budget_s=BUDGET_S)
    assert not grown
