"""Calls that this version does not serve say so, by name."""

from __future__ import annotations

from harness import refused
from wire.calls import SLACK_S, UNIMPLEMENTED


async def test_a_call_that_the_schema_does_not_know_is_unimplemented(channel: object) -> None:
    call = channel.unary_unary("/headway.v1.QueueService/Dance")  # type: ignore[attr-defined]
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        await call(b"", timeout=SLACK_S)
    assert said.metadata == {"method": "Dance"}
    assert said.domain == "headway.v1"
