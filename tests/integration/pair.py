"""Two queues that are given the same to do, by chance, and must say the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headwayd.domain.model import DelayOrder
from headwayd.domain.places import Progress
from integration.desk import BUDGET_S, Desk

MOST_AT_ONCE = 24


def kept(desk: Desk) -> tuple[int, int]:
    """How many leases are kept singly, and how many bundles there are."""
    return int(desk.raw.zcard(desk.key("leases"))), int(desk.raw.zcard(desk.key("bundle_at")))


class Pair:
    """Two queues that are given the same to do. `ask` compares what they say."""

    def __init__(self, desks: tuple[Desk, Desk], seed: int) -> None:
        self.desks = desks
        self.random = random.Random(seed)
        self.leases: list[tuple[str, str]] = []  # of both queues, for each delivery
        self.did: list[str] = []
        self.attempts = 0
        self.names = 0
        self.ms = 0
        self.logged = [0, 0]
        self.tied = 0  # the most bundles that there ever were

    async def ask(self, what: Callable[[Desk, int], Any], told: str = "") -> Any:
        """What both say to it; which desk is the second argument."""
        self.did.append(told)
        one, other = [await what(desk, number) for number, desk in enumerate(self.desks)]
        assert one == other, "\n".join(self.did)
        self.tied = max(self.tied, kept(self.desks[0])[1])
        return one

    def some(self) -> list[tuple[str, str]]:
        """Leases, mostly of late; some twice."""
        near = self.leases[-2 * MOST_AT_ONCE :]
        count = self.random.choice([1, 2, 3, MOST_AT_ONCE])
        chosen = self.random.sample(near, min(count, len(near)))
        if self.random.random() < 0.3:
            first = self.random.randrange(len(near) + 1)
            chosen = near[first : first + count]
        return chosen + chosen[:1] if self.random.random() < 0.1 else chosen

    async def put(self, *, is_plain: bool = False) -> None:
        count = self.random.randint(2, MOST_AT_ONCE)
        has_ids = not is_plain and self.random.random() < 0.2
        ids = [f"id-{self.names + number}" for number in range(count)] if has_ids else []
        self.names += len(ids)
        payloads = [b"%d" % self.random.randrange(10**9) for _ in range(count)]
        if self.random.random() < 0.2:
            payloads[0] = b"\xf5" + payloads[0]  # looks like a frame
        ttl_ms = 5_000 if not is_plain and self.random.random() < 0.1 else 0
        await self.ask(lambda desk, _: self._put(desk, payloads, ids, ttl_ms), f"put {count} {ids[:1]} {ttl_ms}")

    async def _put(self, desk: Desk, payloads: list[bytes], ids: list[str], ttl_ms: int) -> object:
        step = await desk.put(*payloads, ids=ids, time_to_live_ms=ttl_ms)
        return len(step.outcomes)

    async def take(self, *, least: int = 1) -> None:
        if self.random.random() < 0.6:
            self.attempts += 1
        again = self.random.random() < 0.3
        name = f"attempt-{self.attempts}" if again or self.random.random() < 0.5 else ""
        count = self.random.randint(least, MOST_AT_ONCE)
        lease_ms = self.random.choice([500, 2_000, 20_000])
        given: list[list[str]] = [[], []]

        async def act(desk: Desk, number: int) -> object:
            deliveries = await desk.take(count, lease_ms=lease_ms, attempt_id=name)
            given[number] = [one.lease for one in deliveries]
            return [one._replace(lease="", id="" if one.id.startswith("~") else one.id) for one in deliveries]

        await self.ask(act, f"take {count} for {lease_ms} as {name!r}")
        known = set(self.leases)
        self.leases += [pair for pair in zip(*given, strict=True) if pair not in known]

    async def settle(self) -> None:
        chosen = self.some()
        result = b"42" if self.random.random() < 0.1 else b""

        async def act(desk: Desk, number: int) -> object:
            settled = await desk.store.ack(
                desk.name, [pair[number] for pair in chosen], result=result, budget_s=BUDGET_S
            )
            return [one._replace(lease="") for one in settled]

        await self.ask(act, f"ack {self._numbers(chosen)} {result!r}")

    async def give_back(self) -> None:
        chosen = self.some()[:4]
        delay_ms = self.random.choice([0, 0, 700])
        keeps = self.random.random() < 0.5

        async def act(desk: Desk, number: int) -> object:
            order = DelayOrder(
                queue=desk.name, leases=[pair[number] for pair in chosen], delay_ms=delay_ms, keep_attempt=keeps
            )
            return [one._replace(lease="") for one in await desk.store.delay(order, budget_s=BUDGET_S)]

        await self.ask(act, f"give back {self._numbers(chosen)} for {delay_ms}")

    async def release(self) -> None:
        chosen = self.some()

        async def act(desk: Desk, number: int) -> object:
            settled = await desk.store.release(desk.name, [pair[number] for pair in chosen], budget_s=BUDGET_S)
            return [one._replace(lease="") for one in settled]

        await self.ask(act, f"release {self._numbers(chosen)}")

    async def extend(self) -> None:
        chosen = self.some()[:3]

        async def act(desk: Desk, number: int) -> object:
            settled = await desk.store.extend(
                desk.name, [pair[number] for pair in chosen], 3_000, progress=Progress(0.5, "half"), budget_s=BUDGET_S
            )
            return [one._replace(lease="") for one in settled]

        await self.ask(act, f"extend {self._numbers(chosen)}")

    async def wait(self) -> None:
        self.ms += self.random.choice([100, 600, 2_500])
        for desk in self.desks:
            desk.at(self.ms)

        async def act(desk: Desk, _: int) -> None:
            await desk.sweep()

        await self.ask(act, f"wait until {self.ms}")

    async def foreign_get(self) -> None:
        async def act(desk: Desk, _: int) -> bytes | None:
            return desk.foreign_get()

        await self.ask(act, "a foreign client gets")

    async def look(self) -> None:
        """At everything that does not change anything, and at some by their made names, which may be watched, too."""
        tickets = [self.random.randint(1, 200) for _ in range(4)]

        async def act(desk: Desk, number: int) -> object:
            generation = desk.raw.hget(desk.key("meta"), "gen")
            assert isinstance(generation, bytes)
            names = [f"~{generation.decode()}-{ticket}" for ticket in tickets]
            feed = await desk.store.feed(
                desk.name, generation=generation.decode(), logged=self.logged[number], budget_s=BUDGET_S
            )
            self.logged[number] = feed.numbers.logged
            places = await desk.store.places(desk.name, names, with_shape=True, budget_s=BUDGET_S)
            listed = await desk.store.list_leased(desk.name, max_messages=7, budget_s=BUDGET_S)
            return (
                feed.events and sorted(feed.events, key=lambda event: event.ref),  # of each message in order
                [(p.state, p.ref, p.position, p.attempt, p.progress) for p in places.places],
                [one.lease_expires_at_ms for one in listed],  # whose end at the same time stand in any order
                await desk.counts(),
                await desk.is_sound(),
            )

        await self.ask(act, f"look at {tickets}")

    def _numbers(self, chosen: list[tuple[str, str]]) -> list[int]:
        return [self.leases.index(pair) for pair in chosen]


# What is done, and how often.
WEIGHTS = {
    Pair.put: 4,
    Pair.take: 6,
    Pair.settle: 7,
    Pair.give_back: 1,
    Pair.release: 1,
    Pair.extend: 1,
    Pair.wait: 2,
    Pair.foreign_get: 1,
    Pair.look: 3,
}
