"""What is remembered of finished messages, and that it is forgotten in time, whether anybody calls or not."""

from __future__ import annotations

import pytest

from harness import StoreServer
from headwayd.domain.errors import HeadwayError
from headwayd.domain.model import OnDuplicate, PutCode
from headwayd.store import keys
from integration.desk import BUDGET_S, HOUR_MS, Desk, desk_at, queue_of

TEN_IDS = "local MAX_LEASE_MS, MAX_DELAY_MS, MAX_REMEMBERED_IDS = 1000, 1000, 10\n"  # are remembered at most
OWN_AT_REST = ("meta",)  # of our keys, those that an empty queue keeps


def remembered(desk: Desk) -> list[str]:
    """Which of our keys hold something that an empty queue has no need of."""
    return [name for name in keys.OWN if name not in OWN_AT_REST and desk.raw.exists(desk.key(name))]


async def sweep_for(desk: Desk, from_ms: int, to_ms: int, step_ms: int = 500) -> None:
    for ms in range(from_ms, to_ms, step_ms):
        desk.at(ms)
        await desk.sweep()


async def test_an_idle_queue_forgets_everything_in_time(desk: Desk) -> None:
    await desk.create(remember_ms=2_000, dedupe_window_ms=3_000)
    await desk.put(b"a", b"b", b"c", b"d", b"e", ids=["a", "b", "c", "", ""])
    taken = await desk.take(4, attempt_id="try")
    await desk.ack(*(delivery.lease for delivery in taken[:3]))
    await desk.store.ack(desk.name, [taken[3].lease], result=b"so", budget_s=BUDGET_S)
    [last] = await desk.take()
    await desk.give_back(last.lease, delay_ms=1)
    desk.at(2)
    await desk.sweep()
    assert await desk.withdraw(last.id) == [""]
    assert {"acked", "ids", "forget", "attempts"} <= set(remembered(desk))
    await sweep_for(desk, 500, 9_000)
    assert remembered(desk) == ["times"] or remembered(desk) == []
    assert await desk.is_sound()


async def test_who_sweeps_is_told_when_there_is_something_to_forget(desk: Desk) -> None:
    await desk.create(remember_ms=2_000, dedupe_window_ms=0)
    await desk.put(b"a", ids=["a"])
    heard: list[float] = []
    desk.store.on_due(lambda _, seconds: heard.append(seconds))
    await desk.ack((await desk.take_one()).lease)
    assert 1.0 <= heard[-1] <= 3.0
    heard.clear()
    await sweep_for(desk, 3_000, 8_000)
    assert len(heard) < 5, "an idle queue is left in peace"
    assert not desk.raw.exists(desk.key("ids"))


async def test_an_outcome_is_told_until_it_is_forgotten(desk: Desk) -> None:
    await desk.create(remember_ms=2_000, dedupe_window_ms=0, max_attempts=1)
    names = ["done", "gone", "dead", "old"]
    await desk.put(b"1", b"2", b"3", ids=names[:3])
    await desk.put(b"4", ids=["old"], time_to_live_ms=10)
    done = await desk.take_one()
    await desk.ack(done.lease)
    assert await desk.withdraw("gone") == [""]
    [failed] = await desk.take()
    await desk.give_back(failed.lease)
    desk.at(10)
    assert await desk.withdraw(*names, "never") == ["DONE", "WITHDRAWN", "DEAD", "EXPIRED", "MESSAGE_NOT_FOUND"]
    await sweep_for(desk, 500, 6_000)
    missing = "MESSAGE_NOT_FOUND"
    assert await desk.withdraw(*names) == [missing, missing, "DEAD", missing]  # the dead stay until they are purged


async def test_made_ids_tell_their_outcome_too(desk: Desk) -> None:
    await desk.create(remember_ms=2_000)
    put = await desk.put(b"done", b"gone", b"moved")
    later = await desk.put(b"later", delay_ms=100)
    done, gone, moved = (outcome.id for outcome in put.outcomes)
    delayed = later.outcomes[0].id
    await desk.ack((await desk.take_one()).lease)
    assert await desk.withdraw(gone) == [""]
    await desk.give_back((await desk.take_one()).lease, delay_ms=50)
    desk.at(200)
    await desk.sweep()
    assert {d.id for d in await desk.take(9)} == {moved, delayed}
    assert await desk.withdraw(done, gone, moved, delayed) == ["DONE", "WITHDRAWN", "MESSAGE_LEASED", "MESSAGE_LEASED"]
    assert await desk.is_sound()


async def test_the_window_of_a_message_that_a_foreign_client_took_begins_soon_after(desk: Desk) -> None:
    await desk.create(dedupe_window_ms=3_000, remember_ms=0)
    await desk.put(*(b"%d" % n for n in range(600)), ids=[f"id-{n}" for n in range(600)])
    for _ in range(500):
        desk.foreign_get()
    await sweep_for(desk, 100, 3_000, 100)
    assert [outcome.code for outcome in (await desk.put(b"again", ids=["id-7"])).outcomes] == [PutCode.REFUSED]
    await sweep_for(desk, 3_000, 9_000)
    assert desk.raw.hlen(desk.key("ids")) == 100
    assert [outcome.code for outcome in (await desk.put(b"again", ids=["id-7"])).outcomes] == [PutCode.QUEUED]
    assert await desk.is_sound()


async def test_no_more_ids_are_remembered_than_there_is_room_for(
    store_server: StoreServer, request: pytest.FixtureRequest
) -> None:
    async with desk_at(store_server, queue_of(request), limits=TEN_IDS) as desk:
        await desk.create(dedupe_window_ms=HOUR_MS)
        for n in range(40):
            await desk.put(b"x", ids=[f"id-{n}"])
            await desk.ack((await desk.take_one()).lease)
        assert desk.raw.hlen(desk.key("ids")) == desk.raw.zcard(desk.key("forget")) == 10
        outcomes = (await desk.put(b"x", b"x", ids=["id-39", "id-0"])).outcomes
        assert [outcome.code for outcome in outcomes] == [PutCode.REFUSED, PutCode.QUEUED]
        assert await desk.is_sound()


async def test_no_more_ids_are_remembered_than_there_is_room_for_where_many_end_at_once(
    store_server: StoreServer, request: pytest.FixtureRequest
) -> None:
    async with desk_at(store_server, queue_of(request), limits=TEN_IDS) as desk:
        await desk.create(dedupe_window_ms=HOUR_MS)
        await desk.put(*(b"%d" % n for n in range(40)), ids=[f"id-{n}" for n in range(40)])
        assert await desk.ack(*(delivery.lease for delivery in await desk.take(40))) == ["ACKED"] * 40
        assert desk.raw.hlen(desk.key("ids")) == desk.raw.zcard(desk.key("forget")) == 10
        outcomes = (
            await desk.put(b"9", b"38", b"38", ids=["id-9", "id-38", "id-39"], on_duplicate=OnDuplicate.KEEP)
        ).outcomes
        assert [outcome.code for outcome in outcomes] == [PutCode.KEPT] * 3
        assert [outcome.body_differs for outcome in outcomes] == [False, False, True]
        assert await desk.is_sound()


async def test_an_id_that_lives_again_is_not_forgotten_by_its_old_end(desk: Desk) -> None:
    await desk.create(dedupe_window_ms=2_000, remember_ms=0)
    await desk.put(b"x", ids=["a"])
    await desk.ack((await desk.take_one()).lease)
    await desk.put(b"y", ids=["a"], on_duplicate=OnDuplicate.REPLACE)
    await sweep_for(desk, 500, 9_000)
    assert [outcome.code for outcome in (await desk.put(b"z", ids=["a"])).outcomes] == [PutCode.REFUSED]
    assert await desk.is_sound()


async def test_who_repeats_a_get_keeps_the_leases_that_the_lost_call_would_give_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"x")
    first = await desk.take(attempt_id="a")
    again = await desk.take(attempt_id="a")
    assert [d.lease for d in again] == [d.lease for d in first]
    [result] = await desk.store.release(desk.name, [first[0].lease], budget_s=BUDGET_S)
    assert result.settled.name == "STALE"
    assert await desk.ack(again[0].lease) == ["ACKED"]


async def test_what_was_not_asked_again_is_given_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"x")
    [first] = await desk.take(attempt_id="a")
    [result] = await desk.store.release(desk.name, [first.lease], budget_s=BUDGET_S)
    assert result.settled.name == "RELEASED"
    [other] = await desk.take(attempt_id="a")
    assert other.lease != first.lease
    assert other.attempt == 1


async def test_a_lease_of_an_attempt_that_lives_long_is_found_again(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"x")
    [first] = await desk.take(attempt_id="a", lease_ms=100_000)
    await sweep_for(desk, 1_000, 90_000, 5_000)
    assert [d.lease for d in await desk.take(attempt_id="a")] == [first.lease]
    await desk.ack(first.lease)
    await sweep_for(desk, 90_000, 120_000, 5_000)
    assert not desk.raw.exists(desk.key("attempts"))


@pytest.mark.parametrize("count", [1, 8], ids=["one", "a bundle"])
@pytest.mark.parametrize("looked_until_ms", [500, 30_000], ids=["at once", "when nothing is known of it"])
async def test_a_lease_of_an_attempt_that_lapsed_is_the_attempts_no_more_though_it_is_taken_up_again(
    desk: Desk, count: int, looked_until_ms: int
) -> None:
    await desk.create()
    await desk.put(*[b"x"] * count, b"another")
    leases = [delivery.lease for delivery in await desk.take(count, attempt_id="a", lease_ms=100)]
    await sweep_for(desk, 0, looked_until_ms + 1)
    results = await desk.store.extend(desk.name, leases, HOUR_MS, budget_s=BUDGET_S)
    assert [result.settled.name for result in results] == ["EXTENDED"] * count
    [other] = await desk.take(count, attempt_id="a")
    assert other.payload == b"another"
    assert [delivery.lease for delivery in await desk.take(count, attempt_id="a")] == [other.lease]
    assert await desk.ack(*leases, other.lease) == ["ACKED"] * (count + 1)


async def test_what_was_taken_up_again_and_given_back_is_found_by_the_attempt_that_leases_it_anew(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"x")
    [first] = await desk.take(lease_ms=100)
    desk.at(500)
    await desk.store.extend(desk.name, [first.lease], HOUR_MS, budget_s=BUDGET_S)
    await desk.give_back(first.lease, delay_ms=0)
    [second] = await desk.take(attempt_id="a")
    assert [delivery.lease for delivery in await desk.take(attempt_id="a")] == [second.lease]


async def test_dead_messages_move_to_another_queue_once_however_often_it_is_tried(
    desk: Desk, store_server: StoreServer
) -> None:
    await desk.create(max_attempts=1)
    put = await desk.put(b"named", b"bare", ids=["one", ""])
    for delivery in await desk.take(2):
        await desk.give_back(delivery.lease)
    other = f"{desk.name}-target"
    store = desk.store
    target = Desk(store, desk.raw, other)
    await target.create()
    generation = (await store.describe(desk.name, budget_s=BUDGET_S)).generation
    # Broken off between putting there and removing here: the step that removes is made for another life.
    original = store._ask

    async def forgetful(script: str, *arguments: object, **options: object) -> object:
        if script == "drop_dead":
            raise HeadwayError("the process died here")
        return await original(script, *arguments, **options)  # type: ignore[arg-type]

    store._ask = forgetful  # type: ignore[method-assign,assignment]
    with pytest.raises(HeadwayError):
        await store.redrive(desk.name, other, message_ids=(), most=10, budget_s=BUDGET_S)
    store._ask = original  # type: ignore[method-assign]
    assert ((await desk.counts()).dead, (await target.counts()).length) == (2, 2)
    step = await store.redrive(desk.name, other, message_ids=(), most=10, budget_s=BUDGET_S)
    assert (step.moved, step.remaining, step.is_full) == (2, 0, False)
    assert ((await desk.counts()).dead, (await target.counts()).length) == (0, 2)
    taken = await target.take(2)
    assert [(d.id, d.payload, d.attempt) for d in taken] == [("one", b"named", 1), (put.outcomes[1].id, b"bare", 1)]
    assert put.outcomes[1].id.startswith(f"~{generation}-")
    assert await desk.withdraw("one") == ["WITHDRAWN"]
    assert await target.ack(*(d.lease for d in taken)) == ["ACKED", "ACKED"]
    assert await desk.is_sound()
    assert await target.is_sound()
    await store.delete(other, budget_s=BUDGET_S)
