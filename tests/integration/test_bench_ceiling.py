"""The benchmark against the ceiling asks of another store what a service asked of its own under load, and that store
comes to the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bench.rig import started
from bench.store_alone import another_store, asked_again, recorded, steps
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message

pytestmark = pytest.mark.slow

PUTS, IN_EACH, GETTERS = 30, 20, 5
COUNT = PUTS * IN_EACH


async def test_steps_that_are_asked_again_leave_another_store_as_they_left_the_first() -> None:
    async with started(1) as bench:
        stub = bench.stubs[0]

        async def load(queue: str = "seen") -> None:
            await stub.Create(pb.CreateRequest(queue=queue))
            some = pb.PutRequest(queue=queue, messages=[Message(payload=b"x" * 100)] * IN_EACH)
            await asyncio.gather(*(stub.Put(some) for _ in range(PUTS)))
            await asyncio.gather(*(take(queue) for _ in range(GETTERS)))

        async def take(queue: str) -> None:
            leases: list[str] = []
            for _ in range(PUTS // GETTERS):  # the last deliveries stay leased
                answer = await stub.Get(pb.GetRequest(queue=queue, max_messages=IN_EACH // 2, ack=leases))
                leases = [delivery.lease for delivery in answer.deliveries]

        await load("warm")
        recording = await recorded(bench, load)
        waiting, *leased = recording.left
        assert waiting == COUNT // 2
        assert any(leased)
        assert 1 <= steps(recording.puts) <= PUTS
        with another_store(bench) as store:
            for _ in range(2):
                assert min(await asked_again(store, recording, COUNT)) > 0
            with pytest.raises(AssertionError, match=f"0 of {COUNT} were put"):
                await asked_again(store, replace(recording, puts=recording.puts[:1]), COUNT)
            with pytest.raises(AssertionError, match="were left, not"):
                await asked_again(store, replace(recording, takes=recording.takes[:-1]), COUNT)
