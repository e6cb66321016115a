"""What the store's steps do at exact instants and with exact numbers: the scripts run with a clock of the test's own.

Everything here is one call at a time, so each claim is about what a single atomic step leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis.client import PubSub

from headwayd.domain.errors import FieldInvalid, QueueDeleted, QueueDrained
from headwayd.domain.model import DelayOrder, GetOrder, Policy
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import Wait
from headwayd.store import keys, tokens
from integration.desk import BUDGET_S, HOUR_MS, PREFIX, START_MS, Desk


@contextmanager
def listening(desk: Desk, channel: str) -> Iterator[PubSub]:
    """A subscription that stands."""
    with PubSub(desk.raw.connection_pool, ignore_subscribe_messages=True) as heard:
        heard.subscribe(PREFIX + channel)
        heard.get_message(timeout=5)
        yield heard


async def test_a_lease_lapses_at_its_deadline_and_not_a_millisecond_before(desk: Desk) -> None:
    """Something is due a millisecond before, too: else that step would not even look."""
    await desk.create()
    await desk.put(b"one", b"two")
    first = await desk.take_one(lease_ms=999)
    second = await desk.take_one(lease_ms=1_000)
    assert [lease.lease_expires_at_ms - desk.now_ms for lease in (first, second)] == [999, 1_000]
    for at_ms, leased in ((998, 2), (999, 1), (1_000, 0)):
        desk.at(at_ms)
        await desk.sweep()
        counts = await desk.counts()
        assert (counts.leased, counts.length, counts.returned) == (leased, 2 - leased, 2 - leased)


async def test_a_delayed_message_is_due_at_its_instant_and_not_a_millisecond_before(desk: Desk) -> None:
    """Another one is due a millisecond before, too."""
    await desk.create()
    await desk.put(b"one", delay_ms=999)
    await desk.put(b"two", delay_ms=1_000)
    for at_ms, due in ((998, []), (999, [b"one"]), (1_000, [b"two"])):
        desk.at(at_ms)
        assert [delivery.payload for delivery in await desk.take(2)] == due


@pytest.mark.parametrize(("min_backoff_ms", "wait_ms"), [(0, 0), (1, 60_000)])
async def test_after_however_many_failures_a_backoff_is_between_its_bounds(
    desk: Desk, min_backoff_ms: int, wait_ms: int
) -> None:
    """2 ^ 1100 is more than a number of Lua's can be, and nothing times that is no number."""
    await desk.create(min_backoff_ms=min_backoff_ms, max_backoff_ms=60_000, multiplier=2.0, jitter=0.2, max_attempts=0)
    await desk.put(b"one")
    at_ms = waited_ms = 0
    for _ in range(1_100):
        [settled] = await desk.give_back((await desk.take_one()).lease)
        waited_ms = (settled.available_at_ms or desk.now_ms) - desk.now_ms
        if waited_ms:
            at_ms += waited_ms
            desk.at(at_ms)
    assert waited_ms == pytest.approx(wait_ms, rel=0.2)


async def test_a_message_expires_at_its_instant_and_not_a_millisecond_before(desk: Desk) -> None:
    """Another one expires a millisecond before, too."""
    await desk.create()
    await desk.put(b"one", time_to_live_ms=999)
    await desk.put(b"two", time_to_live_ms=1_000)
    for at_ms, left in ((998, 2), (999, 1), (1_000, 0)):
        desk.at(at_ms)
        await desk.sweep()
        counts = await desk.counts()
        assert (counts.length, counts.expired) == (left, 2 - left)


async def test_the_sweeper_is_told_the_first_instant_at_which_something_is_due(desk: Desk) -> None:
    told: list[float] = []
    desk.store.on_due(lambda _queue, delay_s: told.append(delay_s))
    await desk.create()
    await desk.put(b"later", delay_ms=9_000)
    await desk.put(b"sooner", delay_ms=4_000)
    await desk.put(b"now")
    await desk.take_one(lease_ms=2_000)
    assert told[0] == 9.0
    assert told[1:] == [4.0, 4.0, 2.0]


async def test_an_earlier_instant_is_announced_to_every_process_and_a_later_one_is_not(desk: Desk) -> None:
    await desk.create()
    with listening(desk, keys.DUE_CHANNEL) as heard:
        for delay_ms in (9_000, 12_000, 4_000, 5_000):
            await desk.put(b"x", delay_ms=delay_ms)
        base = keys.base_key(PREFIX, desk.name)
        expected = [f"{START_MS + ms} {base}".encode() for ms in (9_000, 4_000)]
        for text in expected:
            assert heard.get_message(timeout=5)["data"] == text
        assert heard.get_message(timeout=0) is None


async def test_more_than_nine_messages_due_at_one_instant_keep_their_order(desk: Desk) -> None:
    await desk.create()
    payloads = [b"%d" % number for number in range(25)]
    for payload in payloads:
        await desk.put(payload, delay_ms=1_000)
    desk.at(1_000)
    assert [delivery.payload for delivery in await desk.take(100)] == payloads


async def test_the_wait_doubles_with_each_failure_up_to_the_longest_and_never_overflows(desk: Desk) -> None:
    await desk.create(min_backoff_ms=1_000, multiplier=2.0, max_backoff_ms=HOUR_MS)
    await desk.put(b"one")
    at = 0
    for failures in range(1, 81):
        [result] = await desk.give_back((await desk.take_one()).lease)
        assert result.attempts == failures
        assert result.available_at_ms is not None
        wait = result.available_at_ms - desk.now_ms
        assert wait == min(HOUR_MS, 1_000 * 2 ** (failures - 1)), failures
        at += wait
        desk.at(at)


async def assert_dead_whole(desk: Desk, body: bytes) -> None:
    """The one message is among the dead, with its body, and nowhere else."""
    counts = await desk.counts()
    assert (counts.dead, counts.leased, counts.delayed, counts.length) == (1, 0, 0, 0)
    corpses = desk.raw.hgetall(desk.key("corpse"))
    assert list(corpses) == desk.raw.zrange(desk.key("dead"), 0, -1)
    [corpse] = corpses.values()
    assert isinstance(corpse, bytes)
    assert corpse.endswith(body)
    assert not desk.raw.exists(*map(desk.key, ("leases", "lease", "body", "bundle", "side")))
    assert counts.accepted == counts.dead


@pytest.mark.parametrize("how", ["given back", "lapsed"])
async def test_one_step_moves_a_message_to_the_dead_with_its_body(desk: Desk, how: str) -> None:
    await desk.create(max_attempts=1)
    await desk.put(b"the whole body", ids=["named"])
    lease = (await desk.take_one(lease_ms=1_000)).lease
    if how == "given back":
        [result] = await desk.give_back(lease)
        assert result.settled.name == "DEAD"
    else:
        desk.at(1_000)
        await desk.sweep()
    await assert_dead_whole(desk, b"the whole body")


async def test_a_token_of_another_generation_is_gone_though_all_else_is_right(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    lease = (await desk.take_one()).lease
    name = tokens.decode(lease)
    forged = tokens.encoder(b"00" * 8)(name.ticket, name.nonce[:16], 1)
    assert tokens.decode(forged)._replace(generation=name.generation) == name
    assert await desk.ack(forged) == ["GONE"]
    assert [result.settled.name for result in await desk.give_back(forged, delay_ms=0)] == ["GONE"]
    assert await desk.ack(lease) == ["ACKED"]


async def test_a_token_of_another_attempt_is_stale_though_all_else_is_right(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    lease = (await desk.take_one()).lease
    name = tokens.decode(lease)
    forged = tokens.encoder(name.generation)(name.ticket, name.nonce[:16], 2)
    assert await desk.ack(forged) == ["STALE"]
    assert [result.settled.name for result in await desk.give_back(forged, delay_ms=0)] == ["STALE"]
    assert await desk.ack(lease) == ["ACKED"]


async def test_a_late_ack_is_stale_once_another_lease_lapsed_after_it(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    first = (await desk.take_one(lease_ms=1_000)).lease
    desk.at(1_000)
    second = (await desk.take_one(lease_ms=1_000)).lease
    desk.at(2_000)
    await desk.sweep()
    assert (await desk.counts()).returned == 1
    assert await desk.ack(first) == ["STALE"]
    assert await desk.ack(second) == ["ACKED"]
    assert await desk.ack(first) == ["STALE"]


async def test_a_lapsed_lease_that_is_taken_up_again_has_cost_no_attempt(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    lease = (await desk.take_one(lease_ms=1_000)).lease
    desk.at(1_000)
    await desk.sweep()
    [extended] = await desk.store.extend(desk.name, [lease], 5_000, budget_s=BUDGET_S)
    assert (extended.settled.name, extended.available_at_ms) == ("EXTENDED", desk.now_ms + 5_000)
    [result] = await desk.give_back(lease, delay_ms=0)
    assert result.attempts == 1


async def test_an_update_of_the_bound_begins_no_new_life(desk: Desk) -> None:
    await desk.create(bound=5)
    await desk.put(b"one", b"two")
    lease = (await desk.take_one()).lease
    before = await desk.store.describe(desk.name, budget_s=BUDGET_S)
    await desk.store.update(desk.name, Policy(bound=3), ["bound"], budget_s=BUDGET_S)
    after = await desk.store.describe(desk.name, budget_s=BUDGET_S)
    assert (after.generation, after.policy.bound) == (before.generation, 3)
    assert await desk.ack(lease) == ["ACKED"]


async def test_a_policy_is_checked_in_the_step_that_changes_it(desk: Desk) -> None:
    await desk.create(max_backoff_ms=5_000, poll_max_ms=5_000)
    too_long, longest = (Policy(min_backoff_ms=ms, poll_base_ms=ms) for ms in (5_001, 5_000))
    for lower in ("min_backoff_ms", "poll_base_ms"):
        with pytest.raises(FieldInvalid):
            await desk.store.update(desk.name, too_long, [lower], budget_s=BUDGET_S)
        await desk.store.update(desk.name, longest, [lower], budget_s=BUDGET_S)
    policy = (await desk.store.describe(desk.name, budget_s=BUDGET_S)).policy
    assert (policy.min_backoff_ms, policy.max_backoff_ms) == (5_000, 5_000)
    assert (policy.poll_base_ms, policy.poll_max_ms) == (5_000, 5_000)


async def test_a_queue_that_was_deleted_and_made_anew_between_two_steps_is_another_queue(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one", b"two")
    await desk.put(b"later", delay_ms=5_000)
    lease = (await desk.take_one()).lease
    for name in keys.PRESSURE:  # what a foreign client's delete does in the end
        desk.raw.delete(desk.key(name))
    desk.raw.set(desk.key("bound"), 0)
    for name in ("producer_free", "consumer_free", "not_full"):
        desk.raw.lpush(desk.key(name), 0)
    assert await desk.ack(lease) == ["GONE"]
    counts = await desk.counts()
    assert (counts.accepted, counts.length, counts.leased, counts.delayed) == (0, 0, 0, 0)


async def test_what_a_foreign_client_took_is_booked_though_a_place_is_not_kept(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one", b"two", b"three")
    waiting = await desk.store.peek(desk.name, from_position=2, max_messages=1, max_bytes=99, budget_s=BUDGET_S)
    assert await desk.withdraw(waiting[0].id) == [""]
    assert desk.foreign_get() == b"one"
    with pytest.raises(QueueDeleted):
        await desk.store.keep_place(
            desk.name, Waiter(name="here#1", number=1, generation="0" * 16), "@place", None, budget_s=BUDGET_S
        )
    assert await desk.is_sound()
    assert (await desk.take_one()).payload == b"three"


async def test_pressures_token_is_there_exactly_while_there_is_room(desk: Desk) -> None:
    await desk.create(bound=2)
    seen = [desk.raw.llen(desk.key("not_full"))]
    for payload in (b"one", b"two"):
        await desk.put(payload)
        seen.append(desk.raw.llen(desk.key("not_full")))
    await desk.take_one()
    seen.append(desk.raw.llen(desk.key("not_full")))
    assert seen == [1, 1, 0, 1]


async def test_room_is_the_first_waiting_producers_whoever_else_asks(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"one")
    with listening(desk, keys.WAKE_CHANNEL + "here"):  # whoever waits must be seen to live
        first = await desk.put(b"first", waiter="here#1")
        second = await desk.put(b"second", waiter="here#2")
        assert (first.wait, second.wait) == (Wait.ROOM, Wait.ROOM)
        assert 0 < first.line_ticket < second.line_ticket
        assert (await desk.take_one()).payload == b"one"
        for overtaker in (
            await desk.put(b"newcomer"),
            await desk.put(b"newcomer", waiter="here#3"),
            await desk.put(b"second", waiter="here#2", line_ticket=second.line_ticket),
        ):
            assert (list(overtaker.outcomes), overtaker.wait) == ([], Wait.ROOM)
        assert len((await desk.put(b"first", waiter="here#1", line_ticket=first.line_ticket)).outcomes) == 1
    assert (await desk.take_one()).payload == b"first"


async def test_a_producer_that_came_when_called_keeps_its_place_for_the_next_room(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"one")
    with listening(desk, keys.WAKE_CHANNEL + "here"):
        first = await desk.put(b"a", b"b", waiter="here#1")
        second = await desk.put(b"behind", waiter="here#2")
        desk.at(1_000)
        await desk.take_one(lease_ms=HOUR_MS)
        assert len((await desk.put(b"a", b"b", waiter="here#1", line_ticket=first.line_ticket)).outcomes) == 1
        desk.at(5_000)
        assert (await desk.take_one(lease_ms=HOUR_MS)).payload == b"a"
        behind = await desk.put(b"behind", waiter="here#2", line_ticket=second.line_ticket)
        assert (list(behind.outcomes), behind.wait) == ([], Wait.ROOM)
        assert len((await desk.put(b"b", waiter="here#1", line_ticket=first.line_ticket)).outcomes) == 1


async def test_a_producer_that_came_once_and_leaves_the_next_call_for_two_seconds_loses_its_place(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"one")
    with listening(desk, keys.WAKE_CHANNEL + "here"):
        first = await desk.put(b"a", b"b", waiter="here#1")
        second = await desk.put(b"behind", waiter="here#2")
        desk.at(1_000)
        await desk.take_one(lease_ms=HOUR_MS)
        assert len((await desk.put(b"a", b"b", waiter="here#1", line_ticket=first.line_ticket)).outcomes) == 1
        desk.at(5_000)
        await desk.take_one(lease_ms=HOUR_MS)
        for at_ms, accepted in ((7_000, 0), (7_001, 1)):
            desk.at(at_ms)
            behind = await desk.put(b"behind", waiter="here#2", line_ticket=second.line_ticket)
            assert len(behind.outcomes) == accepted


async def test_small_puts_do_not_overtake_one_that_needs_more_room_however_long_it_waits(desk: Desk) -> None:
    await desk.create(bound=3)
    await desk.put(b"one", b"two")
    with listening(desk, keys.WAKE_CHANNEL + "here") as heard:
        ticket = 0
        for at_ms in range(1_000, 10_000, 1_500):  # each small one calls it, and it comes
            desk.at(at_ms)
            waits = await desk.put(b"a", b"b", b"c", waiter="here#1", line_ticket=ticket, all_or_nothing=True)
            assert (list(waits.outcomes), waits.wait) == ([], Wait.ROOM)
            ticket = waits.line_ticket
            assert list((await desk.put(b"small")).outcomes) == []
            assert heard.get_message(timeout=5) is not None
        await desk.take(2, lease_ms=HOUR_MS)
        whole = await desk.put(b"a", b"b", b"c", waiter="here#1", line_ticket=ticket, all_or_nothing=True)
        assert len(whole.outcomes) == 3


async def test_a_closed_queue_with_a_lease_out_is_not_drained(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    lease = (await desk.take_one()).lease
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)
    assert await desk.take() == []
    assert await desk.ack(lease) == ["ACKED"]
    with pytest.raises(QueueDrained):
        await desk.take()


async def test_deleting_with_everything_outstanding_leaves_no_key(desk: Desk) -> None:
    await desk.create(max_attempts=2, dedupe_window_ms=HOUR_MS)
    await desk.put(*(b"%d" % number for number in range(6)), ids=[f"id-{number}" for number in range(6)])
    await desk.put(b"later", delay_ms=5_000)
    first, second, third, fourth = await desk.take(4)
    await desk.ack(first.lease)
    for _ in range(2):
        [again] = await desk.give_back(second.lease, delay_ms=0)
        second = second if again.settled.name == "DEAD" else (await desk.take_one())
    await desk.give_back(third.lease, delay_ms=0)
    await desk.give_back(fourth.lease, delay_ms=7_000)
    base = keys.base_key(PREFIX, desk.name)
    assert {bytes(key).decode() for key in desk.raw.scan_iter(f"{base}:x:*")} > {desk.key("corpse"), desk.key("later")}
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    assert list(desk.raw.scan_iter(f"{base}*")) == []
    await desk.create()


async def test_a_get_that_finds_its_message_too_large_gives_a_foreign_put_under_way_no_second_token(desk: Desk) -> None:
    await desk.create(bound=2)
    await desk.put(b"x" * 100)
    for key in ("producer_free", "not_full"):  # it has found the room that it is about to take
        assert desk.raw.rpop(desk.key(key)) is not None
    order = GetOrder(queue=desk.name, max_messages=1, lease_ms=1_000, max_bytes=10, must_fit=True)
    for max_bytes, taken, tokens_there in ((10, 0, 0), (100, 1, 1)):
        step = await desk.store.get(order._replace(max_bytes=max_bytes), budget_s=BUDGET_S)
        assert len(step.deliveries) == taken
        assert desk.raw.llen(desk.key("not_full")) == tokens_there
    desk.raw.lpush(desk.key("producer_free"), 0)


@pytest.mark.parametrize("how", ["redriven", "postponed"])
async def test_a_lease_has_no_say_of_the_ticket_that_its_message_has_later(desk: Desk, how: str) -> None:
    """Its last lease lapsed, so a late ack by its own ticket was good."""
    await desk.create(max_attempts=1 if how == "redriven" else 2)
    await desk.put(b"one", ids=["one"])
    lease = (await desk.take_one(lease_ms=1_000)).lease
    desk.at(1_000)
    await desk.sweep()
    if how == "redriven":
        await desk.store.redrive(desk.name, "", message_ids=[], most=5, budget_s=BUDGET_S)
    else:
        order = DelayOrder(queue=desk.name, leases=[], message_ids=["one"], delay_ms=10)
        await desk.store.delay(order, budget_s=BUDGET_S)
        desk.at(1_010)
        await desk.sweep()
    name = tokens.decode(lease)
    forged = tokens.encoder(name.generation)(name.ticket + 1, name.nonce[:16], 1)
    assert tokens.decode(forged) == name._replace(ticket=name.ticket + 1)
    extended = await desk.store.extend(desk.name, [forged], 1_000, budget_s=BUDGET_S)
    assert [one.settled.name for one in extended] == ["STALE"]
    assert await desk.ack(forged, lease) == ["STALE", "STALE"]
    delivery = await desk.take_one()
    assert (delivery.ticket, delivery.attempt) == (2, 1 if how == "redriven" else 2)
    assert await desk.is_sound()


async def test_ids_that_foreign_clients_take_while_others_are_looked_for_are_found(desk: Desk) -> None:
    await desk.create()
    count, first, more = 2_000, 1, 1_500
    for start in range(0, count, 500):
        await desk.put(*[b"x"] * 500, ids=[f"id-{n}" for n in range(start, start + 500)])
    desk.foreign_get()
    at_ms = 0
    for _ in range(2):  # the second step begins to look, and is not at the end by far
        await desk.sweep()
        at_ms += 1_100
        desk.at(at_ms)
    await desk.sweep()
    assert desk.raw.hget(desk.key("meta"), "scan") not in (b"-1", b"0")
    desk.raw.rpop(desk.key("q"), more)
    desk.raw.incrby(desk.key("consumed_messages"), more)
    for _ in range(100):
        await desk.sweep()
        at_ms += 60
        desk.at(at_ms)
    assert desk.raw.hget(desk.key("meta"), "scan") == b"-1"
    states = [state[:1] for state in desk.raw.hvals(desk.key("ids"))]
    assert (states.count(b"w"), states.count(b"f")) == (count - first - more, first + more)
    assert await desk.is_sound()


async def test_who_takes_all_the_while_has_their_ids_looked_for_once_a_second(desk: Desk) -> None:
    await desk.create()
    for start in (0, 500):
        await desk.put(*[b"x"] * 500, ids=[f"id-{n}" for n in range(start, start + 500)])

    def looks() -> int:
        asked: dict[str, dict[str, int]] = desk.raw.info("commandstats")
        return asked.get("cmdstat_hscan", {}).get("calls", 0)

    before = looks()
    for step in range(300):
        desk.at(step * 10)
        desk.foreign_get()
        await desk.sweep()
    assert 5 <= looks() - before <= 30  # by 200, and then a second's rest: without it 60


async def test_nobody_overtakes_a_producer_that_stands_behind_many_that_are_gone(desk: Desk) -> None:
    await desk.create(bound=2)
    await desk.put(b"one")
    with listening(desk, ":x:wake:alive"):
        desk.raw.zadd(desk.key("producers"), {f"gone-{n}#1": n for n in range(1, 251)} | {"alive#1": 251})
        for left in (151, 1, 1):  # a hundred are dropped when the step begins, and a hundred at its end
            assert len((await desk.put(b"overtakes")).outcomes) == 0
            assert desk.raw.zcard(desk.key("producers")) <= left
        step = await desk.put(b"two", waiter="alive#1", line_ticket=251)
    assert len(step.outcomes) == 1
    assert [delivery.payload for delivery in await desk.take(5)] == [b"one", b"two"]
