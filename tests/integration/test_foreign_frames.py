"""A foreign client put a frame that it had got elsewhere: whatever becomes of that message, the id in it goes on to
name the one that Headway put under it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwayd.domain.model import Delivery, GetOrder, OnDuplicate, PutCode
from integration.desk import BUDGET_S, HOUR_MS, Desk

NAME = "order-1"


async def frame_of(desk: Desk, payload: bytes) -> bytes:
    """As a foreign client gets it from another queue."""
    await desk.create()
    await desk.put(payload, ids=[NAME])
    frame = desk.raw.lindex(desk.key("q"), 0)
    assert isinstance(frame, bytes)
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    return frame


def put_by_another(desk: Desk, frame: bytes) -> None:
    """As a foreign client puts, and counts, it."""
    desk.raw.lpush(desk.key("q"), frame)
    desk.raw.incr(desk.key("produced_messages"))
    desk.raw.incrby(desk.key("produced_bytes"), len(frame))


async def acked(desk: Desk, twin: Delivery) -> None:
    assert await desk.ack(twin.lease) == ["ACKED"]


async def acked_late(desk: Desk, twin: Delivery) -> None:
    desk.at(HOUR_MS)
    assert await desk.ack(twin.lease) == ["ACKED"]


async def dead(desk: Desk, twin: Delivery) -> None:
    await desk.give_back(twin.lease, delay_ms=0)
    assert (await desk.counts()).dead == 1


async def dead_and_purged(desk: Desk, twin: Delivery) -> None:
    await dead(desk, twin)
    await desk.store._ask("purge", desk.name, "dead", 100, "", budget_s=BUDGET_S)
    assert (await desk.counts()).dead == 0


async def dead_and_redriven(desk: Desk, twin: Delivery) -> None:
    await dead(desk, twin)
    assert (await desk.store.redrive(desk.name, "", message_ids=(), most=1, budget_s=BUDGET_S)).moved == 1


async def delayed(desk: Desk, twin: Delivery) -> None:
    await desk.give_back(twin.lease, delay_ms=HOUR_MS)
    assert (await desk.counts()).delayed == 1


async def delayed_and_due(desk: Desk, twin: Delivery) -> None:
    await delayed(desk, twin)
    desk.at(HOUR_MS)
    await desk.sweep()
    assert (await desk.counts()).length == 2


@pytest.mark.parametrize(
    "becomes", [acked, acked_late, dead, dead_and_purged, dead_and_redriven, delayed, delayed_and_due]
)
async def test_an_id_names_what_headway_put_under_it(
    desk: Desk, becomes: Callable[[Desk, Delivery], Awaitable[None]]
) -> None:
    frame = await frame_of(desk, b"theirs")
    await desk.create(max_attempts=2 if becomes in {acked_late, delayed, delayed_and_due} else 1)
    put_by_another(desk, frame)
    await desk.put(b"ours", ids=[NAME])
    twin = await desk.take_one()
    assert (twin.id, twin.payload) == (NAME, b"theirs")
    await becomes(desk, twin)
    [outcome] = (await desk.put(b"again", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    assert (outcome.code, outcome.ticket) == (PutCode.KEPT, 2)
    assert await desk.withdraw(NAME, NAME) == ["", "WITHDRAWN"]
    left = await desk.take(2)
    assert b"ours" not in [delivery.payload for delivery in left]


async def test_an_id_names_what_headway_put_under_it_where_both_are_acked_at_once(desk: Desk) -> None:
    frame = await frame_of(desk, b"theirs")
    await desk.create()
    put_by_another(desk, frame)
    await desk.put(b"ours", ids=[NAME])
    twins = await desk.take(2)
    assert [twin.payload for twin in twins] == [b"theirs", b"ours"]
    assert await desk.ack(*(twin.lease for twin in twins)) == ["ACKED", "ACKED"]
    [same] = (await desk.put(b"ours", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    [other] = (await desk.put(b"theirs", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    assert (same.code, same.body_differs) == (PutCode.KEPT, False)
    assert (other.code, other.body_differs) == (PutCode.KEPT, True)
    assert await desk.is_sound()


async def test_an_id_that_came_with_two_frames_names_the_first_where_both_are_acked_at_once(desk: Desk) -> None:
    frames = [await frame_of(desk, b"first"), await frame_of(desk, b"second")]
    await desk.create()
    for frame in frames:
        put_by_another(desk, frame)
    assert await desk.ack(*(twin.lease for twin in await desk.take(2))) == ["ACKED", "ACKED"]
    [outcome] = (await desk.put(b"first", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    assert (outcome.code, outcome.body_differs) == (PutCode.KEPT, False)
    assert await desk.is_sound()


async def acked_with_a_result(desk: Desk, twin: Delivery) -> None:
    [result] = await desk.store.ack(desk.name, [twin.lease], result=b"42", budget_s=BUDGET_S)
    assert result.settled.name == "ACKED"


async def acked_by_a_get(desk: Desk, twin: Delivery) -> None:
    step = await desk.store.get(GetOrder(queue=desk.name, ack=[twin.lease]), budget_s=BUDGET_S)
    assert [one.settled.name for one in step.settled] == ["ACKED"]


async def acked_when_it_came_again(desk: Desk, twin: Delivery) -> None:
    await desk.give_back(twin.lease, delay_ms=0)
    await acked(desk, await desk.take_one())


@pytest.mark.parametrize("becomes", [acked, acked_with_a_result, acked_by_a_get, acked_when_it_came_again])
@pytest.mark.parametrize("stands", ["alone", "behind", "ageing"])
async def test_an_id_that_came_with_a_frame_is_known_once_its_message_is_acked(
    desk: Desk, stands: str, becomes: Callable[[Desk, Delivery], Awaitable[None]]
) -> None:
    """Also where no other is known, so that nothing else would make a step look for ids."""
    frame = await frame_of(desk, b"theirs")
    await desk.create(time_to_live_ms=HOUR_MS if stands == "ageing" else 0)
    if stands == "behind":
        await desk.put(b"came back")
        await desk.give_back((await desk.take_one()).lease, delay_ms=0)
    put_by_another(desk, frame)
    twin = (await desk.take(2))[-1]
    assert (twin.id, twin.payload) == (NAME, b"theirs")
    assert not desk.raw.exists(desk.key("ids"))
    await becomes(desk, twin)
    [outcome] = (await desk.put(b"again", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    assert outcome.code is PutCode.KEPT
    assert await desk.is_sound()
