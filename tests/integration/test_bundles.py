"""Bundles: what is leased in one step is kept as one while it is only acked, and nobody can tell the difference.

Two queues are given the same to do. The scripts of one keep every lease by itself; whatever is asked, both must answer
the same.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from importlib import resources
from typing import Any

import pytest

from harness import StoreServer
from headwayd.domain.errors import QueueDrained
from headwayd.domain.model import DelayOrder, GetOrder
from headwayd.domain.places import Progress
from headwayd.domain.standing import Waiter
from headwayd.store import keys, tokens
from headwayd.store.redis_store import RedisStore
from integration.desk import BUDGET_S, HOUR_MS, PREFIX, Desk, built
from integration.test_exact_instants import listening

SINGLE_KEYS = ("leases", "lease", "body")
BUNDLE_KEYS = ("bundle", "bundle_at", "bundle_from")
MOST_AT_ONCE = 24
OPERATIONS = 60


def without_bundles() -> str:
    """The include of the scripts, but nothing is ever tied together."""
    text = resources.files("headwayd.store").joinpath("lua", "include", "bundles.lua").read_text()
    never = text.replace("local BUNDLE_LEAST = 2", "local BUNDLE_LEAST = 1000000")
    assert never != text
    return never


@pytest.fixture
async def single(desk: Desk, store_server: StoreServer) -> AsyncIterator[Desk]:
    """A queue beside that of `desk`, whose leases are all kept singly."""
    store = RedisStore(
        store_server.url,
        prefix=PREFIX,
        process="headway/exact/1/0",
        embedded=False,
        call_timeout=timedelta(seconds=5),
        scripts=built((("bundles", without_bundles()),)),
    )
    made = Desk(store, desk.raw, f"{desk.name}-single")
    yield made
    await store.delete(made.name, budget_s=BUDGET_S)
    assert list(desk.raw.scan_iter(f"{keys.base_key(PREFIX, made.name)}:*")) == []
    await store.close()


def kept(desk: Desk) -> tuple[int, int]:
    """How many leases are kept singly, and how many bundles there are."""
    return int(desk.raw.zcard(desk.key("leases"))), int(desk.raw.zcard(desk.key("bundle_at")))


async def filled(desk: Desk, count: int, **policy: Any) -> list[str]:
    """So many messages, all leased in one step: the leases."""
    await desk.create(**policy)
    await desk.put(*(b"%d" % number for number in range(count)))
    return [delivery.lease for delivery in await desk.take(count)]


async def test_what_is_leased_in_one_step_is_kept_as_one_until_the_last_is_acked(desk: Desk) -> None:
    leases = await filled(desk, 100)
    assert kept(desk) == (0, 1)
    assert not desk.raw.exists(*map(desk.key, SINGLE_KEYS))
    for first in range(0, 100, 10):
        assert (await desk.counts()).leased == 100 - first
        assert await desk.ack(*leases[first : first + 10]) == ["ACKED"] * 10
        assert await desk.is_sound()
    assert not desk.raw.exists(*map(desk.key, SINGLE_KEYS + BUNDLE_KEYS))
    assert await desk.ack(*leases) == ["ALREADY_ACKED"] * 100
    counts = await desk.counts()
    assert (counts.leased, counts.acked, counts.length) == (0, 100, 0)


async def test_a_single_lease_is_no_bundle(desk: Desk) -> None:
    await filled(desk, 1)
    assert kept(desk) == (1, 0)


async def test_messages_with_ids_are_no_bundle(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", ids=["one", "two"])
    await desk.take(2)
    assert kept(desk) == (2, 0)


@pytest.mark.parametrize("what", ["extended", "given back", "acked with a result", "asked again"])
async def test_a_bundle_is_untied_by_whatever_else_happens_to_one_of_it_and_no_other_is(desk: Desk, what: str) -> None:
    await filled(desk, 4)
    await desk.put(*(b"%d" % number for number in range(8)))
    second = [delivery.lease for delivery in await desk.take(8, attempt_id="a")]
    await desk.ack(second[0])
    assert kept(desk) == (0, 2)
    match what:
        case "extended":
            await desk.store.extend(desk.name, [second[3]], HOUR_MS, budget_s=BUDGET_S)
        case "given back":
            await desk.give_back(second[3], delay_ms=0)
        case "acked with a result":
            await desk.store.ack(desk.name, [second[3]], result=b"42", budget_s=BUDGET_S)
        case _:
            assert [one.lease for one in await desk.take(8, attempt_id="a")] == second[1:]
    assert kept(desk) == (7 if what in {"extended", "asked again"} else 6, 1)
    assert await desk.is_sound()


@pytest.mark.parametrize(("size", "is_freed"), [(20, False), (20_000, True)])
async def test_a_bundle_of_many_bytes_does_not_stay_for_the_sake_of_few_leases(
    desk: Desk, size: int, is_freed: bool
) -> None:
    await desk.create()
    await desk.put(*[b"x" * size] * 17)
    leases = [delivery.lease for delivery in await desk.take(17)]
    await desk.ack(*leases[:14])
    assert kept(desk) == (0, 1)  # 3 of 17 are left
    await desk.ack(leases[15])
    assert kept(desk) == ((2, 0) if is_freed else (0, 1))
    assert await desk.is_sound()
    assert await desk.ack(*leases[14:]) == ["ACKED", "ALREADY_ACKED", "ACKED"]


async def test_a_bundle_lapses_at_its_deadline_and_not_a_millisecond_before(desk: Desk) -> None:
    leases = await filled(desk, 600)
    await desk.ack(*leases[100:200])
    desk.at(999)
    await desk.sweep()
    assert (await desk.counts()).leased == 500
    desk.at(1_000)
    await desk.sweep()
    counts = await desk.counts()
    assert (counts.leased, counts.length, counts.returned) == (0, 500, 500)
    assert await desk.is_sound()
    again = await desk.take(500)
    assert [one.ticket for one in again] == [*range(1, 101), *range(201, 601)]
    assert {one.attempt for one in again} == {2}


async def test_many_bundles_lapse_in_bounded_steps_and_come_back_in_order(desk: Desk) -> None:
    await desk.create()
    await desk.put(*(b"%d" % number for number in range(1_500)))
    for _ in range(5):
        await desk.take(300)
    desk.at(1_000)
    for left in (1_000, 500, 0):
        await desk.sweep()
        assert (await desk.counts()).leased == left
    assert [one.ticket for one in await desk.take(1_000)] == list(range(1, 1_001))


async def test_a_made_up_lease_of_a_message_in_a_bundle_is_stale(desk: Desk) -> None:
    [first, *_] = await filled(desk, 3)
    name = tokens.decode(first)
    made_up, step = tokens.encoder(name.generation), name.nonce[:16]
    assert await desk.ack(made_up(2, bytes(16), 1)) == ["STALE"]
    assert await desk.ack(made_up(4, step, 1)) == ["GONE"]
    assert await desk.ack(made_up(2, step, 2)) == ["STALE"]
    assert (await desk.counts()).leased == 3


async def test_a_closed_queue_is_drained_when_the_last_of_a_bundle_is_acked(desk: Desk) -> None:
    leases = await filled(desk, 3)
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)
    await desk.ack(*leases[:2])
    assert await desk.take(1) == []
    await desk.ack(leases[2])
    with pytest.raises(QueueDrained):
        await desk.take(1)


async def test_what_is_in_bundles_is_listed_as_what_is_kept_singly(desk: Desk) -> None:
    leases = await filled(desk, 6)  # until 1,000
    await desk.ack(leases[1])
    await desk.put(*(b"%d" % number for number in range(4)))
    await desk.take(3, lease_ms=500)
    [last] = await desk.take(1, lease_ms=700)
    for most in range(1, 11):
        listed = await desk.store.list_leased(desk.name, max_messages=most, budget_s=BUDGET_S)
        assert [one.ticket for one in listed] == [7, 8, 9, 10, 1, 3, 4, 5, 6][:most]
        assert {(one.attempt, one.leased_at_ms, one.put_at_ms) for one in listed} == {(1, desk.now_ms, desk.now_ms)}
        assert [one.lease_expires_at_ms - desk.now_ms for one in listed] == [500, 500, 500, 700, *[1_000] * 5][:most]
    await desk.ack(last.lease)


async def test_a_limit_counts_what_is_in_bundles(desk: Desk) -> None:
    leases = await filled(desk, 5, limit=4)
    assert len(leases) == 4
    assert await desk.take(2) == []
    await desk.ack(leases[1])
    assert [one.ticket for one in await desk.take(2)] == [5]


@pytest.mark.parametrize("how", ["acked", "given back"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["in bundles", "kept singly"])
async def test_of_two_turns_that_end_together_the_first_to_end_goes_on_first(
    desk: Desk, is_tied: bool, how: str
) -> None:
    await desk.create()
    await desk.put(*(b"%d" % number for number in range(4)), ids=[] if is_tied else [f"id-{n}" for n in range(4)])
    held = []
    with listening(desk, f"{keys.WAKE_CHANNEL}headway/two"):
        for number in (1, 2):
            waiter = Waiter(name=f"headway/two#{number}", owns_leases=True, keeps_standing=True)
            order = GetOrder(queue=desk.name, max_messages=2, lease_ms=HOUR_MS)
            held.append([d.lease for d in (await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)).deliveries])
        assert kept(desk) == ((0, 2) if is_tied else (4, 0))
        (first, second), (third, fourth) = held
        leases = [first, fourth, third, second]  # the turn of 2 ends before that of 1
        await (desk.ack(*leases) if how == "acked" else desk.give_back(*leases, delay_ms=HOUR_MS))
        assert desk.raw.zrange(desk.key("consumers"), 0, -1) == [b"headway/two#2", b"headway/two#1"]


async def test_what_a_stream_of_a_dead_process_had_in_a_bundle_is_given_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3")
    order = GetOrder(queue=desk.name, max_messages=3, lease_ms=HOUR_MS)
    waiter = Waiter(name="headway/gone/1#1", owns_leases=True)
    step = await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)
    assert kept(desk) == (0, 1)
    await desk.ack(step.deliveries[1].lease)
    await desk.store.drop_absent(desk.name, budget_s=BUDGET_S)
    again = await desk.take(3)
    assert [(one.payload, one.attempt) for one in again] == [(b"1", 1), (b"3", 1)]
    assert await desk.is_sound()
    assert not desk.raw.exists(desk.key("owners"), desk.key("held"))


# Nobody can tell the difference.


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


@pytest.mark.parametrize("seed", range(12))
async def test_nobody_can_tell_a_bundle_from_leases_kept_singly(desk: Desk, single: Desk, seed: int) -> None:
    pair = Pair((desk, single), seed)
    policy = {"max_attempts": pair.random.choice([0, 2]), "limit": pair.random.choice([0, 0, 40])}
    await pair.ask(lambda each, _: each.create(**policy), f"create {policy}")
    await pair.put(is_plain=True)
    await pair.take(least=2)
    for act in pair.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=OPERATIONS):
        await act(pair)
    await pair.look()
    assert pair.tied > 0
    assert kept(single)[1] == 0
