"""A store that is far away: every answer comes late, and all calls are answered for all that."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from faults.conftest import Connect, Serve
from faults.table import ask, requests
from faults.wires import ReplyProxy
from wire.calls import line_at

pytestmark = pytest.mark.any_store

LATE_S = 0.2
CALLS = 600  # of which the store's sixteen connections would carry 80 a second, were each sent by itself


async def test_calls_on_many_queues_that_come_one_by_one_go_together(
    proxy: ReplyProxy, serve: Serve, connect: Connect
) -> None:
    service = await serve(proxy.url)
    async with line_at(service.address, "jobs", connect) as line:
        proxy.late_s = LATE_S
        calls = []
        for number in range(CALLS):
            request = requests(f"jobs{number}", "")["Describe"]
            calls.append(asyncio.create_task(ask(line, "Describe", request, timeout=10)))
            await asyncio.sleep(0.002)
        answers = Counter(answer.error.reason for answer in await asyncio.gather(*calls))
        proxy.late_s = 0.0
    assert [*answers] == ["QUEUE_NOT_FOUND"], answers
