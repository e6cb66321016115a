"""Calls and fields that the schema has and this version does not serve say so, by name."""

from __future__ import annotations

import pytest

from harness import refused
from headway.v1 import queue_service_pb2
from wire.calls import SLACK_S, UNIMPLEMENTED, Line


@pytest.mark.parametrize("method", ["Consume"])
async def test_streams_are_not_served_yet(line: Line, method: str) -> None:
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        match method:
            case "Consume":
                consume = [queue_service_pb2.ConsumeRequest()]
                await anext(aiter(line.stub.Consume(iter(consume), timeout=SLACK_S)))
    assert said.metadata == {"method": method}
    assert said.domain == "headway.v1"


async def test_a_call_that_the_schema_does_not_know_is_unimplemented(line: Line, channel: object) -> None:
    call = channel.unary_unary("/headway.v1.QueueService/Dance")  # type: ignore[attr-defined]
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        await call(b"", timeout=SLACK_S)
    assert said.metadata == {"method": "Dance"}
