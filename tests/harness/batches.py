"""Producers of large batches, and what became of each batch: there as a whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import TYPE_CHECKING

import grpc
import redis

from harness.errors import error_of
from harness.stores import StoreServer

if TYPE_CHECKING:
    from wire.calls import Line

OF_A_BATCH = 150
_PRODUCERS = 3
_FILLING = b"x" * 500
_PAUSE_S = 0.02  # after a Put that failed


@dataclass
class Batches:
    """What producers were told."""

    accepted: set[bytes] = field(default_factory=set)  # names of batches
    unknown: set[bytes] = field(default_factory=set)
    is_over: bool = False

    def are_more(self, than: int) -> bool:
        """Accepted ones."""
        return len(self.accepted) > than

    def assert_whole(self, payloads: Iterable[bytes]) -> None:
        """Of all that was ever delivered, in order: what was accepted is there, and nothing in parts or twice."""
        found = set[bytes]()
        for name, batch in groupby(payloads, key=lambda payload: payload.split(b" ")[0]):
            assert [int(payload.split(b" ")[1]) for payload in batch] == [*range(OF_A_BATCH)], name
            assert name not in found
            found.add(name)
        assert self.accepted <= found <= self.accepted | self.unknown


@asynccontextmanager
async def batches_put(line: Line) -> AsyncIterator[Batches]:
    """Some producers put batches, one after the other, while the block runs."""
    batches = Batches()

    async def produce(producer: int) -> None:
        for number in count():
            if batches.is_over:
                return
            name = b"%d-%d" % (producer, number)
            try:
                await line.put(*(b"%s %d %s" % (name, n, _FILLING) for n in range(OF_A_BATCH)))
                batches.accepted.add(name)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error_of(error)
                if error_of(error).reason == "OUTCOME_UNKNOWN":
                    batches.unknown.add(name)
                await asyncio.sleep(_PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for producer in range(_PRODUCERS):
            group.create_task(produce(producer))
        yield batches
        batches.is_over = True


def gates_tried(*stores: StoreServer) -> int:
    """How often these stores were asked to put payloads where a gate would be."""
    tried = 0
    for store in stores:
        with store.client() as client:
            tried += calls_of(client, "lpushx")
    return tried


def calls_of(client: redis.Redis, command: str) -> int:
    """How often the store has run this command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


async def drained(line: Line) -> list[bytes]:
    """All that waits, in order; acknowledged."""
    found: list[bytes] = []
    while deliveries := (await line.get(1_000)).deliveries:
        await line.ack(*(one.lease for one in deliveries))
        found += [one.message.payload for one in deliveries]
    return found
