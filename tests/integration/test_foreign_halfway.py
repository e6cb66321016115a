"""A foreign put and a foreign get at the same time, each between its push or pop and its count.

Then the line is as long as before, and no counter tells that everything in it has moved up by one. Some never count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from harness import StoreServer
from headwayd.domain.errors import RoleInUse
from headwayd.domain.model import DelayOrder, Outcome, Policy
from headwayd.store import tokens
from integration.desk import BUDGET_S, FAR, HOUR_MS, Desk, desk_at, queue_of

ROLES = {"producer": "produced_messages", "consumer": "consumed_messages"}


@pytest.fixture
async def long_line(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """Whose elements but the four at each end are taken out later."""
    reach = f"local NEAR = 4\nlocal MOST_MOVED = 4096\n{FAR}"
    async with desk_at(store_server, queue_of(request), reach=reach) as desk:
        yield desk


def take(desk: Desk, role: str, name: str) -> None:
    """A stock client takes a role."""
    assert desk.raw.rpop(desk.key(f"{role}_free")) is not None
    desk.raw.set(desk.key(role), name)


def give_back(desk: Desk, role: str, *, counts: bool = True) -> None:
    """It has done what it wanted, and counts that unless it was interrupted."""
    if counts:
        desk.raw.incr(desk.key(ROLES[role]))
    desk.raw.lpush(desk.key(f"{role}_free"), 0)


@contextmanager
def halfway(desk: Desk) -> Iterator[None]:
    """A stock client has taken the head, and another has put a message; both count at the end."""
    for role in ROLES:
        take(desk, role, f"foreign {role}")
    desk.raw.rpop(desk.key("q"))
    desk.raw.lpush(desk.key("q"), b"foreign")
    try:
        yield
    finally:
        for role in ROLES:
            give_back(desk, role)


async def left(desk: Desk) -> list[bytes]:
    """All that wait, once what the foreign clients did is booked; a check finds nothing."""
    for _ in range(3):
        await desk.sweep()
    assert await desk.is_sound()
    payloads = [delivery.payload for delivery in await desk.take(20)]
    assert await desk.is_sound()
    return payloads


async def test_what_is_withdrawn_by_its_id_goes_and_not_the_one_behind_it(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3", b"4", ids=["m1", "m2", "m3", "m4"])
    with halfway(desk):
        assert await desk.withdraw("m2") == [""]
        assert desk.raw.llen(desk.key("q")) == 3  # its id tells where it stands, so no foreign client gets it
    assert await left(desk) == [b"3", b"4", b"foreign"]
    assert await desk.withdraw("m2") == [Outcome.WITHDRAWN.name]


async def test_what_a_foreign_client_has_just_taken_is_not_withdrawn(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", ids=["m1", "m2"])
    with halfway(desk):
        assert await desk.withdraw("m1") == [Outcome.UNKNOWN.name]  # finished, and nobody knows how
    assert await left(desk) == [b"2", b"foreign"]
    assert (await desk.counts()).taken_by_foreign == 1


async def test_what_is_withdrawn_by_a_made_id_goes_and_not_the_one_behind_it(desk: Desk) -> None:
    await desk.create()
    step = await desk.put(b"1", b"2", b"3", b"4")
    with halfway(desk):
        told: list[float] = []
        desk.store.on_due(lambda _queue, delay_s: told.append(delay_s))
        assert await desk.withdraw(step.outcomes[1].id, step.outcomes[3].id) == ["", ""]
        for _ in range(2):
            await desk.sweep()
        assert told == [0.1] * 3  # so long they stand there, for foreign clients
    assert await left(desk) == [b"3", b"foreign"]


async def test_a_late_ack_ends_its_message_and_no_other(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    leases = [delivery.lease for delivery in await desk.take(2, lease_ms=1_000)]
    desk.at(1_000)
    await desk.sweep()
    with halfway(desk):
        assert await desk.ack(leases[1]) == ["ACKED"]
    assert await left(desk) == [b"3", b"foreign"]
    assert await desk.withdraw("m1", "m2") == ["UNKNOWN", Outcome.DONE.name]


async def test_what_is_far_from_both_ends_is_taken_out_when_it_is_sure_where_it_stands(long_line: Desk) -> None:
    await long_line.create()
    names = [f"m{n}" for n in range(12)]
    await long_line.put(*[name.encode() for name in names], ids=names)
    assert await long_line.withdraw("m5") == [""]
    assert long_line.raw.zcard(long_line.key("holes")) == 1
    for _ in range(4):
        long_line.foreign_get()
    with halfway(long_line):
        await long_line.sweep()
        await long_line.counts()
    assert await left(long_line) == [*map(str.encode, names[6:]), b"foreign"]


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "behind others that came back"])
async def test_what_is_given_back_goes_to_the_head_when_it_is_sure_what_stands_there(desk: Desk, others: int) -> None:
    await desk.create(max_attempts=2)
    names = [f"m{n}" for n in range(others + 4)]
    await desk.put(*[name.encode() for name in names], ids=names)
    leases = [delivery.lease for delivery in await desk.take(others + 1, lease_ms=HOUR_MS)]
    if others:
        await desk.give_back(*leases[:others], delay_ms=0)
    with halfway(desk):
        [settled] = await desk.give_back(leases[-1], delay_ms=0)
        assert (settled.settled.name, settled.attempts) == ("RELEASED", 1)
        assert await desk.ack(leases[-1]) == ["STALE"]
        given = tokens.decode(leases[-1])
        made_up = tokens.encoder(given.generation)(given.ticket, bytes(16), 0)
        assert await desk.ack(made_up) == ["GONE"]
        extended = await desk.store.extend(desk.name, [made_up], HOUR_MS, budget_s=BUDGET_S)
        assert [one.settled.name for one in extended] == ["GONE"]
        await desk.sweep()
        assert (await desk.counts()).leased == 1
    await desk.sweep()
    queue = await desk.store.describe(desk.name, budget_s=BUDGET_S)
    assert (queue.counts.leased, queue.lapsed_count, queue.counts.returned) == (0, 0, 2 if others else 1)
    assert await desk.ack(leases[-1]) == ["STALE"]
    gone = 0 if others else 1  # the head: of those that came back, or of those behind the lease
    assert await left(desk) == [name.encode() for n, name in enumerate(names) if n != gone] + [b"foreign"]


async def test_what_is_due_waits_until_it_is_sure_where_it_goes(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"old", ids=["old"], time_to_live_ms=900)
    await desk.put(b"leased", b"1", b"2", ids=["leased", "m1", "m2"])
    await desk.put(b"short", ids=["short"], time_to_live_ms=1_000)
    await desk.put(b"later", ids=["later"], delay_ms=1_000)
    desk.at(899)
    assert [delivery.payload for delivery in await desk.take(2, lease_ms=101)] == [b"old", b"leased"]
    told: list[float] = []
    desk.store.on_due(lambda _queue, delay_s: told.append(delay_s))
    with halfway(desk):
        desk.at(1_000)
        for _ in range(3):
            await desk.sweep()
        counts = await desk.counts()
        assert (counts.leased, counts.delayed, counts.expired) == (2, 1, 0)
        assert min(told) >= 0.005  # and nobody comes again and again
        desk.at(2_000)
        await desk.sweep()
        assert told[-1] == 0.1
        desk.at(9_000)
        report = await desk.store.check(desk.name, max_entries=1_000, budget_s=BUDGET_S)
        assert not [finding for finding in report.findings if "does no service sweep" in finding]
    await desk.sweep()
    counts = await desk.counts()
    assert (counts.leased, counts.delayed, counts.expired) == (0, 0, 2)
    assert await left(desk) == [b"leased", b"2", b"foreign", b"later"]


async def test_a_check_tells_that_what_is_due_waits_for_foreign_clients(desk: Desk) -> None:
    """As for ever where one of them is dead."""
    await desk.create()
    await desk.put(b"leased")
    await desk.take(lease_ms=1_500)
    await desk.put(b"short", time_to_live_ms=2_000)
    await desk.put(b"later", delay_ms=1_000)
    for role in ROLES:
        take(desk, role, "dead")
    desk.at(5_999)
    await desk.sweep()
    assert await desk.is_sound()
    desk.at(6_500)
    await desk.sweep()
    report = await desk.store.check(desk.name, max_entries=1_000, budget_s=BUDGET_S)
    [finding] = report.findings
    assert "foreign clients hold both roles, and what was due 5 s ago waits" in finding
    for role in ROLES:
        give_back(desk, role, counts=False)
    assert await left(desk) == [b"leased", b"later"]


async def test_the_dead_find_no_room_while_it_is_not_sure_where_they_stand(desk: Desk) -> None:
    await desk.create(max_attempts=1)
    await desk.put(b"dead", b"1", b"2", ids=["dead", "m1", "m2"])
    await desk.give_back((await desk.take_one()).lease)
    with halfway(desk):
        step = await desk.store.redrive(desk.name, "", message_ids=[], most=5, budget_s=BUDGET_S)
        assert (step.moved, step.is_full) == (0, True)
    step = await desk.store.redrive(desk.name, "", message_ids=[], most=5, budget_s=BUDGET_S)
    assert step.moved == 1
    assert await left(desk) == [b"2", b"foreign", b"dead"]


async def test_nothing_is_taken_up_again_or_postponed_while_it_is_not_sure_where_it_stands(desk: Desk) -> None:
    await desk.create(max_attempts=3)
    await desk.put(b"1", b"2", b"3", b"4", ids=["m1", "m2", "m3", "m4"])
    leases = [delivery.lease for delivery in await desk.take(3, lease_ms=1_000)]
    desk.at(1_000)
    await desk.sweep()
    with halfway(desk):
        extended = await desk.store.extend(desk.name, leases[1:2], 1_000, budget_s=BUDGET_S)
        assert [one.settled.name for one in extended] == ["STALE"]
        [settled] = await desk.give_back(leases[2], delay_ms=5_000)
        assert (settled.settled.name, settled.available_at_ms) == ("RELEASED", None)
        order = DelayOrder(queue=desk.name, leases=[], message_ids=["m4"], delay_ms=5_000)
        with pytest.raises(RoleInUse) as refused:
            await desk.store.delay(order, budget_s=0.1)
        assert refused.value.metadata["holder"] == "foreign producer"
    assert await left(desk) == [b"2", b"3", b"4", b"foreign"]


async def test_one_of_them_alone_keeps_nothing_waiting(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    for role in ROLES:
        desk.raw.rpop(desk.key(f"{role}_free"))
        lease = (await desk.take_one(lease_ms=HOUR_MS)).lease if role == "producer" else ""
        if role == "producer":
            await desk.give_back(lease, delay_ms=0)
        assert await desk.withdraw("m1" if role == "producer" else "m2") == [""]
        assert desk.raw.exists(desk.key("holes")) == 0
        desk.raw.lpush(desk.key(f"{role}_free"), 0)
    assert await left(desk) == [b"3"]


async def test_what_one_of_them_did_is_seen_and_then_nothing_waits(desk: Desk) -> None:
    """Until that one has counted it does nothing more. Where many stock clients want the roles none is ever free."""
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    await desk.put(b"later", ids=["later"], delay_ms=1_000)
    for role in ROLES:
        desk.raw.rpop(desk.key(f"{role}_free"))
    desk.raw.rpop(desk.key("q"))
    desk.at(1_000)
    await desk.sweep()
    assert (await desk.counts()).delayed == 0
    desk.raw.lpush(desk.key("q"), b"foreign")
    assert await desk.withdraw("m2") == [""]
    assert desk.raw.exists(desk.key("holes")) == 0
    for role, counter in ROLES.items():
        desk.raw.incr(desk.key(counter))
        desk.raw.lpush(desk.key(f"{role}_free"), 0)
    assert await left(desk) == [b"3", b"later", b"foreign"]


async def test_from_a_closed_queue_it_is_sure_what_was_taken(desk: Desk) -> None:
    """It takes no pushes, so the roles that its clients still hold keep nothing waiting."""
    await desk.create()
    await desk.put(b"1", b"2", ids=["m1", "m2"])
    await desk.store.update(desk.name, Policy(max_attempts=1), ["max_attempts"], budget_s=BUDGET_S)
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)
    for role in ROLES:
        desk.raw.rpop(desk.key(f"{role}_free"))
    assert await desk.withdraw("m2") == [""]
    assert desk.raw.llen(desk.key("q")) == 1
    for role in ROLES:
        desk.raw.lpush(desk.key(f"{role}_free"), 0)
    assert await left(desk) == [b"1"]


async def test_what_foreign_clients_never_counted_hides_nothing_that_others_do_later(desk: Desk) -> None:
    """They were interrupted behind their push or pop, and gave their role back."""
    await desk.create()
    await desk.put(b"1", b"2", b"3", b"4", ids=["m1", "m2", "m3", "m4"])
    desk.raw.lpush(desk.key("q"), b"uncounted")
    await desk.sweep()
    desk.raw.rpop(desk.key("q"))
    await desk.sweep()
    desk.raw.lpush(desk.key("q"), b"counted")
    desk.raw.incr(desk.key("produced_messages"))
    desk.foreign_get()
    assert await desk.withdraw("m3") == [""]
    assert (await desk.counts()).taken_by_foreign == 2
    assert await left(desk) == [b"4", b"uncounted", b"counted"]


@pytest.mark.parametrize("role", ROLES)
async def test_what_is_counted_late_is_not_counted_twice(desk: Desk, role: str) -> None:
    """By a client that has its role until then, whatever others do."""
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    desk.raw.rpop(desk.key(f"{role}_free"))
    if role == "producer":
        desk.raw.lpush(desk.key("q"), b"foreign")
    else:
        desk.raw.rpop(desk.key("q"))
    for _ in range(2):
        await desk.sweep()
    assert await desk.withdraw("m2") == [""]
    desk.raw.incr(desk.key(ROLES[role]))
    await desk.sweep()
    desk.raw.lpush(desk.key(f"{role}_free"), 0)
    counts = await desk.counts()
    assert (counts.taken_by_foreign, counts.length) == (0, 3) if role == "producer" else (1, 1)
    assert await left(desk) == [b"1", b"3", b"foreign"] if role == "producer" else [b"3"]


@pytest.mark.parametrize("how", ["by another name", "later", "behind another act"])
async def test_what_an_interrupted_client_did_is_not_taken_for_what_the_next_one_does(desk: Desk, how: str) -> None:
    """Who waits for a role gets it the moment it is given back, so no step ever sees it free."""
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    expected = [b"3", b"interrupted", b"foreign"]
    take(desk, "producer", "a")
    desk.raw.lpush(desk.key("q"), b"interrupted")
    await desk.sweep()
    give_back(desk, "producer", counts=False)
    take(desk, "producer", "b" if how == "by another name" else "a")
    if how == "later":
        desk.at(100)
    elif how == "behind another act":
        desk.raw.lpush(desk.key("q"), b"counted")
        expected.insert(2, b"counted")
        await desk.sweep()
        give_back(desk, "producer")
        take(desk, "producer", "a")
    take(desk, "consumer", "c")
    desk.raw.rpop(desk.key("q"))
    desk.raw.lpush(desk.key("q"), b"foreign")
    assert await desk.withdraw("m2") == [""]
    for role in ROLES:
        give_back(desk, role)
    assert await left(desk) == expected


@pytest.mark.parametrize("role", ROLES)
async def test_what_a_version_saw_that_notes_nothing_is_not_counted_twice(desk: Desk, role: str) -> None:
    """While a service is updated both versions see what foreign clients do."""
    await desk.create()
    await desk.put(b"1", b"2", b"3", ids=["m1", "m2", "m3"])
    take(desk, role, "a")
    if role == "producer":
        desk.raw.lpush(desk.key("q"), b"foreign")
    else:
        desk.raw.rpop(desk.key("q"))
    await desk.sweep()
    desk.raw.hdel(desk.key("meta"), f"{role}_acted")
    await desk.sweep()
    give_back(desk, role)
    assert await desk.withdraw("m3") == [""]
    assert await left(desk) == ([b"1", b"2", b"foreign"] if role == "producer" else [b"2"])
