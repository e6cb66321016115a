"""The consumer line is fair and what is told of it is true: every grant goes to one of the first that can be served,
never more leases are out than there are slots, and every place told is the rank in the store's own line.

HEADWAY_TRUTH_PLACES sets how many places are told on streams.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack

import grpc.aio
import pytest

from harness import ServiceProcess, StoreServer, eventually
from headway.v1.queue_pb2 import Poll
from truth.consumer_witness import ConsumerWitness
from truth.standers import Stander, Standers
from truth.verdict import AS_OF_S, Verdict, sent_late
from wire.calls import Line, line_at, span
from wire.operators import assert_sound

PLACES = int(os.environ.get("HEADWAY_TRUTH_PLACES", "5000"))
SERVICES, STANDERS, LIMIT = 3, 36, 4
PREFIX, QUEUE = "__truth__", "line"
ENOUGH_TO_LEASE = 1_000
SLOWEST_PER_S = 40  # the run fails if it is slower for long


async def judge(verdict: Verdict, witness: ConsumerWitness, store: StoreServer, standers: Standers, line: Line) -> int:
    """As it goes on, and then what is left. Returns how many places of polls were judged."""
    polled = 0
    with store.client() as client:
        while not standers.enough() or verdict.pending:
            await asyncio.sleep(0.1)
            if client.llen(f"{PREFIX}:{QUEUE}") < ENOUGH_TO_LEASE:
                await line.put(*([b"x"] * ENOUGH_TO_LEASE))
            await asyncio.to_thread(witness.tick, client)
            while standers.polled and standers.polled[0].heard.at < witness.seen_until:
                one = standers.polled.pop(0)
                seen = witness.states(one.asked_at - AS_OF_S, one.heard.at)
                assert any(map(one.heard.is_true_in, seen)), one
                polled += 1
            if not standers.polled:
                verdict.judge()
            assert not verdict.false, verdict.false[:5]
            assert not witness.wrong, witness.wrong[:5]
            assert not witness.unfair, witness.unfair[:5]
            assert not witness.over_limit, witness.over_limit[:5]
            assert not standers.errors, standers.errors[:5]
    return polled


@pytest.mark.slow
@pytest.mark.timeout(90 + PLACES / SLOWEST_PER_S)
async def test_grants_are_fair_slots_are_never_exceeded_and_places_are_true_while_a_service_is_killed(
    fresh_store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
    figure: Callable[[str, str], None],
) -> None:
    env = {
        "HEADWAY_STORE_TIMEOUT": "2s",  # what is judged is truth, not how long a busy disk may stall
        "HEADWAY_REDIS_URL": fresh_store_server.url,
        "HEADWAY_HTTP_LISTEN": "127.0.0.1:0",
        "PRESSURE_PREFIX": PREFIX,
        "HEADWAY_LOG_LEVEL": "warning",
    }
    services = [make_service(**env) for _ in range(SERVICES)]
    witness = ConsumerWitness(fresh_store_server.port, f"{PREFIX}:{QUEUE}", limit=LIMIT)
    verdict = Verdict(witness)
    standers = Standers(hear=verdict.hear, enough=lambda: verdict.judged >= PLACES)
    async with AsyncExitStack() as stack:
        stack.callback(witness.close)
        lines = [
            await stack.enter_async_context(line_at(services[number % SERVICES].address, QUEUE, connect))
            for number in range(STANDERS)
        ]
        poll = Poll(base=span(10), per_position=span(0), max=span(10))
        await lines[0].create(poll=poll, limit=LIMIT, turns=3)
        await lines[0].put(*([b"x"] * ENOUGH_TO_LEASE))
        async with asyncio.TaskGroup() as group:
            judging = group.create_task(judge(verdict, witness, fresh_store_server, standers, lines[0]))
            standing = [group.create_task(Stander(line, standers, number).run()) for number, line in enumerate(lines)]
            await eventually(lambda: judging.done() or verdict.judged > PLACES / 2, within=60 + PLACES / SLOWEST_PER_S)
            await asyncio.to_thread(services[-1].kill)
            standers.done["killed"] += 1
        assert all(task.done() for task in standing)
        await eventually(lambda: is_empty(lines[0]), within=30)
        await assert_sound(lines[0])
    ages = sorted(verdict.ages_ms.elements())
    figure("grants judged", f"{witness.grants}; {dict(standers.done)}")
    figure("places told on streams and to polls", f"{verdict.judged} and {judging.result()}; none false")
    figure("changes of the consumer line", str(witness.changes))
    figure("age of a place when it came", f"p50 {ages[len(ages) // 2]} ms, p99 {ages[len(ages) * 99 // 100]} ms")
    assert [await sent_late(service) for service in services[:-1]] == [0] * (SERVICES - 1)  # the last was killed
    assert not verdict.are_old, f"{verdict.old_count} of {verdict.judged} were more than a second old"
    assert witness.grants > PLACES / 20


async def is_empty(line: Line) -> bool:
    counts = await line.counts()
    return (counts.consumers_waiting, counts.leased) == (0, 0)
