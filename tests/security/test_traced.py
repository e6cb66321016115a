"""Traces tell queues of one name in several namespaces apart, and hold none of the credentials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from harness import ServiceProcess
from harness.otlp import OtlpReceiver
from security.callers import OTHERS, TEAM, line_of, write_callers
from wire.calls import Message, leases

pytestmark = pytest.mark.any_store


async def test_queues_of_one_name_are_told_by_their_namespace(
    start: Callable[..., ServiceProcess], connect: Callable[[str], grpc.aio.Channel], short_dir: Path, name: str
) -> None:
    callers = (TEAM["admin"], OTHERS["admin"])
    file = write_callers(short_dir / "callers.toml", callers)
    async with OtlpReceiver() as receiver:
        env = {"HEADWAY_OTLP_ENDPOINT": receiver.endpoint, "HEADWAY_TRACE_RATIO": "1", "OTEL_BSP_SCHEDULE_DELAY": "20"}
        service = start(HEADWAY_AUTH_FILE=str(file), **env)
        async with connect(service.address) as channel:
            lines = [line_of(channel, caller, name) for caller in callers]
            for line in lines:
                await line.create()
                await line.put(Message(payload=b"x", id="first"), Message(payload=b"x", id="job"))
            for line in lines:
                await line.ack(*leases(await line.take(2)))
            await receiver.until("Ack", 2)
        service.stop()
        told = {one.attributes["messaging.destination.name"] for one in receiver.spans}
        assert told == {f"{caller.namespace}/{name}" for caller in callers}
        waits = [one for one in receiver.named("Wait") if one.attributes["messaging.message.id"] == "job"]
        assert [[event.attributes["headway.position"] for event in one.events] for one in waits] == [[2], [2]]
        assert not [
            caller for caller in callers if caller.metadata[0][1].split()[-1].encode() in b"".join(receiver.raw)
        ]
