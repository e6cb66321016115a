"""A store that is far away: every answer comes late, and all calls are answered for all that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from faults.conftest import Connect, Serve
from faults.table import ask, requests
from faults.wires import ReplyProxy
from harness import eventually
from wire.calls import line_at
from wire.flows import Consuming

pytestmark = pytest.mark.any_store

LATE_S = 0.2
HOUR_MS = 3_600_000
LONG_S = 0.5  # a quarter of what a step may take
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


async def test_a_stream_asks_for_less_at_a_time_while_its_steps_take_long(
    proxy: ReplyProxy, serve: Serve, connect: Connect
) -> None:
    """As where many streams have the store in turn, and each waits for all the others."""
    service = await serve(proxy.url)
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        for _ in range(20):
            await line.put(*[b"x"] * 1_000)

        async def asks_for_less_and_for_more_again() -> bool:
            async with Consuming(line, 0, lease_ms=HOUR_MS) as stream:
                sizes: list[int] = []

                async def ack_what_comes_next() -> None:
                    seen = sum(sizes)
                    new = await stream.until(lambda: stream.deliveries[seen:])
                    sizes[:] = [len(one.deliveries) for one in stream.seen if one.deliveries]
                    with suppress(asyncio.InvalidStateError):  # it has ended, and says why when it is read next
                        await stream.ack(*(one.lease for one in new))

                async def until_one_has(is_looked_for: Callable[[int], bool]) -> None:
                    while not any(map(is_looked_for, sizes[-1:])):
                        await ack_what_comes_next()

                try:
                    proxy.late_s = LONG_S
                    await stream.credit(1_000)
                    await until_one_has(lambda size: size <= 125)
                    assert max(sizes) == 500  # half of the credit
                    proxy.late_s = 0.0
                    await until_one_has(lambda size: size >= 250)
                except grpc.aio.AioRpcError as error:
                    # The machine stood still, a step took longer than it may, and that ended the stream: then it is
                    # tried again.
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    return False
                finally:
                    proxy.late_s = 0.0
            return True

        await eventually(asks_for_less_and_for_more_again, within=60)
