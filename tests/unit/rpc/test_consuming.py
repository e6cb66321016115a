"""Consume: what is kept of its requests."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

from google.protobuf.message import Message

from headway.v1 import queue_service_pb2 as pb
from headwayd.domain.consuming import ConsumeOrder, ConsumeStep, ToldConsumer
from headwayd.rpc.consuming import consume
from unit.rpc.fake_engine import FakeEngine

REFERENCES = len(("of the list", "of the loop", "of the argument"))


class Reading(FakeEngine):
    """Tells something whenever it has read a step, and before it asks for the next."""

    async def consume(
        self, order: ConsumeOrder, steps: AsyncIterator[ConsumeStep], *, budget_s: float
    ) -> AsyncGenerator[ToldConsumer, None]:
        del order, budget_s
        yield ToldConsumer(is_drained=True)
        async for _ in steps:
            yield ToldConsumer(is_drained=True)


async def test_nothing_is_kept_of_a_request_that_was_read() -> None:
    """However large it is, it would be there as long as nothing follows it."""
    sent: list[Message] = []

    async def requests() -> AsyncIterator[pb.ConsumeRequest]:
        sent.append(pb.ConsumeRequest(start=pb.ConsumeStart(queue="q")))
        yield sent[-1]  # type: ignore[misc]
        sent.append(pb.ConsumeRequest(credit=pb.Credit(messages=1)))
        yield sent[-1]  # type: ignore[misc]

    context: Any = SimpleNamespace(time_remaining=lambda: None)
    read = 0
    async for _ in consume(Reading(), requests(), context):
        read += 1
        assert [sys.getrefcount(one) for one in sent] == [REFERENCES] * read
    assert read == len(("the start", "the credit"))
