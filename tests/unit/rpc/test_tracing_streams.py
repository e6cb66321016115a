"""What the tracing of a stream remembers of its leases: those that it may still have at its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast
from unittest.mock import Mock

import pytest

from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery
from headwayd.rpc.edge import Context
from headwayd.rpc.tracing import streams
from headwayd.rpc.tracing.port import JobTracer

CONTEXT = cast(Context, Mock(**{"invocation_metadata.return_value": ()}))


async def ended_with(replies: AsyncGenerator[Any, None], tracer: Mock) -> list[str]:
    """What the tracer is told of when the stream with these replies is over."""
    async with aclosing(replies):
        async for _ in replies:
            pass
    tracer.ended.assert_called_once()
    return list(tracer.ended.call_args.args[0])


async def test_a_stream_whose_leases_lapse_remembers_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MOST_LEASES", 10)

    async def behaviour(_asked: AsyncIterator[Any], _context: Context) -> AsyncGenerator[pb.ConsumeResponse, None]:
        for step in range(100):
            yield pb.ConsumeResponse(deliveries=[Delivery(lease=f"{step}-{number}") for number in range(3)])

    async def asked() -> AsyncIterator[pb.ConsumeRequest]:
        return
        yield

    tracer = Mock(spec=JobTracer)
    told = await ended_with(streams.consuming(tracer, "", behaviour, asked(), CONTEXT), tracer)
    assert told == ["96-2", *(f"{step}-{number}" for step in (97, 98, 99) for number in range(3))]


async def test_a_stream_that_keeps_standing_remembers_the_leases_of_its_turn() -> None:
    async def behaviour(_asked: Any, _context: Context) -> AsyncGenerator[pb.WatchPositionResponse, None]:
        for lease in "abc":
            yield pb.WatchPositionResponse(granted=pb.Granted(deliveries=[Delivery(lease=lease)]))

    tracer = Mock(spec=JobTracer)
    request = pb.WatchPositionRequest(stand=pb.Stand(keep_standing=True))
    told = await ended_with(streams.watching(tracer, "", behaviour, request, CONTEXT), tracer)
    assert told == ["c"]
