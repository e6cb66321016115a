"""What a stream that stood in line does when its queue is no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwayd.domain.errors import QueueNotFound
from headwayd.domain.standing import StandOrder, ToldOver, ToldPlace
from headwayd.engine.consumers import Consumers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.standing.standing import Standing
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates
from integration.desk import BUDGET_S, Desk


async def test_who_stands_in_the_line_of_a_queue_that_is_deleted_need_not_leave_it(
    desk: Desk, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    async def leave(queue: str, *_: Any, **__: Any) -> None:
        left.append(queue)
        raise QueueNotFound(queue)

    consumers = Consumers(desk.store, tasks.spawn, process="headway/exact/1/0")
    standing = Standing(consumers, tasks.spawn, max_bytes=10**6, estimates=Estimates(WaitEstimator))
    streams = [standing.stand(StandOrder(queue=desk.name), budget_s=BUDGET_S) for _ in range(10)]
    for stream in streams:
        assert isinstance(await anext(stream), ToldPlace)
    for way in ("keep_place", "stop_standing"):
        monkeypatch.setattr(desk.store, way, leave)
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    standing.kick(desk.name)
    async with asyncio.timeout(10):
        for stream in streams:
            assert [one async for one in stream if not isinstance(one, ToldPlace)] == [ToldOver(is_deleted=True)]
    await tasks.drain(5)
    assert left == []
    await desk.create()  # to be deleted by whoever made it
