"""A foreign client put a frame that it had got elsewhere: whatever becomes of that message, the id in it goes on to
name the one that Headway put under it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwayd.domain.model import Delivery, OnDuplicate, PutCode
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
    desk.raw.lpush(desk.key("q"), frame)
    desk.raw.incr(desk.key("produced_messages"))
    desk.raw.incrby(desk.key("produced_bytes"), len(frame))
    await desk.put(b"ours", ids=[NAME])
    twin = await desk.take_one()
    assert (twin.id, twin.payload) == (NAME, b"theirs")
    await becomes(desk, twin)
    [outcome] = (await desk.put(b"again", ids=[NAME], on_duplicate=OnDuplicate.KEEP)).outcomes
    assert (outcome.code, outcome.ticket) == (PutCode.KEPT, 2)
    assert await desk.withdraw(NAME, NAME) == ["", "WITHDRAWN"]
    left = await desk.take(2)
    assert b"ours" not in [delivery.payload for delivery in left]
