"""What watchers are told is true: every position sent is the rank in the store's own list, as of the instant it names,
within the last second.

HEADWAY_TRUTH_OPS sets how many operations on messages are done (`make truth`: 1,000,000).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import grpc.aio
import pytest

from harness import ServiceProcess, StoreServer
from headway.v1.queue_pb2 import Poll
from truth.crowd import Client, Crowd, Onlooker, Stranger
from truth.verdict import Verdict, sent_late
from truth.witness import LineWitness
from wire.calls import line_at, span

OPERATIONS = int(os.environ.get("HEADWAY_TRUTH_OPS", "10000"))
SERVICES, CLIENTS, ONLOOKERS = 3, 6, 18
PREFIX, QUEUE = "__truth__", "line"
BASE = f"{PREFIX}:{QUEUE}"
SLOWEST_OPS_PER_S = 100  # the run fails if it is slower for long
# Positions that must be judged: so many in any run, and of a long one so many for each onlooker and second, whatever
# the number of operations that are done meanwhile.
LEAST_POSITIONS, LEAST_POSITIONS_PER_S = 1_000, 5


@pytest.fixture
def services(fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]) -> list[ServiceProcess]:
    """Several processes on one store."""
    env = {
        "HEADWAY_STORE_TIMEOUT": "2s",  # what is judged is truth, not how long a busy disk may stall
        "HEADWAY_REDIS_URL": fresh_store_server.url,
        "HEADWAY_HTTP_LISTEN": "127.0.0.1:0",
        "PRESSURE_PREFIX": PREFIX,
        "HEADWAY_LOG_LEVEL": "warning",
    }
    return [make_service(**env) for _ in range(SERVICES)]


@pytest.fixture
def witness(fresh_store_server: StoreServer) -> Iterator[LineWitness]:
    """The witness of the line."""
    seeing = LineWitness(fresh_store_server.port, BASE)
    yield seeing
    seeing.close()


async def judge_all(verdict: Verdict, witness: LineWitness, store: StoreServer, crowd: Crowd) -> None:
    """As it goes on, and then what is left."""
    with store.client() as client:
        while not crowd.is_over or verdict.pending:
            await asyncio.sleep(0.1)
            await asyncio.to_thread(witness.tick, client)
            verdict.judge()
            assert not verdict.false, verdict.false[:5]
            assert not witness.wrong, witness.wrong[:5]
            assert not crowd.errors, crowd.errors[:5]


@pytest.mark.slow
@pytest.mark.timeout(60 + OPERATIONS / SLOWEST_OPS_PER_S)
async def test_every_position_sent_was_the_rank_at_the_instant_it_names(
    fresh_store_server: StoreServer,
    services: list[ServiceProcess],
    witness: LineWitness,
    connect: Callable[[str], grpc.aio.Channel],
    figure: Callable[[str, str], None],
) -> None:
    crowd_verdict = Verdict(witness)
    crowd = Crowd(length=lambda: witness.length, hear=crowd_verdict.hear, most=OPERATIONS)
    stopped = threading.Event()
    async with AsyncExitStack() as stack:
        lines = [
            await stack.enter_async_context(line_at(services[number % SERVICES].address, QUEUE, connect))
            for number in range(CLIENTS + ONLOOKERS)
        ]
        await lines[0].create(poll=Poll(base=span(10), per_position=span(0), max=span(10)))
        foreign = stack.enter_context(fresh_store_server.client())
        stranger = threading.Thread(target=Stranger(foreign, BASE, crowd).run, args=(stopped,), daemon=True)
        stranger.start()
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(judge_all(crowd_verdict, witness, fresh_store_server, crowd))
                for number in range(CLIENTS):
                    group.create_task(Client(lines[number], crowd, number).run())
                for number in range(ONLOOKERS):
                    group.create_task(Onlooker(lines[CLIENTS + number], crowd, number).run())
        finally:
            stopped.set()
            stranger.join(10)
        took_s = time.monotonic() - began
    ages = sorted(crowd_verdict.ages_ms.elements())
    figure("operations on messages", f"{crowd.count}: {dict(crowd.done)}")
    figure("changes of the line, positions judged", f"{witness.changes}, {crowd_verdict.judged}; none false")
    figure("age of a position when it came", f"p50 {ages[len(ages) // 2]} ms, p99 {ages[len(ages) * 99 // 100]} ms")
    assert [await sent_late(service) for service in services] == [0] * SERVICES
    assert not crowd_verdict.are_old, f"{crowd_verdict.old_count} of {crowd_verdict.judged} were more than a second old"
    assert crowd_verdict.judged > max(LEAST_POSITIONS, LEAST_POSITIONS_PER_S * ONLOOKERS * took_s)
