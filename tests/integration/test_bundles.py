"""Bundles: what is leased in one step is kept as one while it is only acked, and nobody can tell the difference.

Two queues are given the same to do. The scripts of one keep every lease by itself; whatever is asked, both must answer
the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import pytest

from harness import StoreServer
from headwayd.domain.errors import QueueDrained
from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from headwayd.store import keys, tokens
from integration.desk import BUDGET_S, HOUR_MS, PREFIX, Desk, store_of
from integration.pair import WEIGHTS, Pair, kept
from integration.test_exact_instants import listening

SINGLE_KEYS = ("leases", "lease", "body")
BUNDLE_KEYS = ("bundle", "bundle_at", "bundle_from")
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
    store = store_of(store_server, bundles=without_bundles())
    made = Desk(store, desk.raw, f"{desk.name}-single")
    yield made
    await store.delete(made.name, budget_s=BUDGET_S)
    assert list(desk.raw.scan_iter(f"{keys.base_key(PREFIX, made.name)}:*")) == []
    await store.close()


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
