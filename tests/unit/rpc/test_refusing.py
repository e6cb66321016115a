"""When callers who are refused for a backlog are told to come again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from harness import eventually, refused
from headwayd.domain.limits import Limits
from headwayd.engine.counting.counts import Counts
from headwayd.rpc.backlog import BUSY, Backlog
from headwayd.rpc.core.completions import Completions
from headwayd.rpc.core.server import Server
from headwayd.rpc.edge import CallRouter, Gate
from headwayd.rpc.refusing import BEARABLE_PER_S, FIRST_S, LONGEST_S, SHORTEST_S, Refusing, RetryDelay, refusals


class Clock:
    """Stands until told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def delay(clock: Clock) -> RetryDelay:
    return RetryDelay(clock=clock)


def refuse(delay: RetryDelay, clock: Clock, per_s: int, seconds: int) -> None:
    for _ in range(seconds):
        for _ in range(per_s):
            delay.note()
        clock.now += 1


def test_the_delay_is_the_shortest_while_refusals_are_bearable(delay: RetryDelay, clock: Clock) -> None:
    refuse(delay, clock, BEARABLE_PER_S, seconds=5)
    delay.note()
    assert delay.seconds == FIRST_S


def test_the_delay_grows_with_more_refusals_and_has_an_end(delay: RetryDelay, clock: Clock) -> None:
    refuse(delay, clock, 4 * BEARABLE_PER_S, seconds=1)
    delay.note()
    assert delay.seconds == 2 * FIRST_S
    refuse(delay, clock, 10 * BEARABLE_PER_S, seconds=10)
    delay.note()
    assert delay.seconds == LONGEST_S


def test_callers_who_wait_as_told_come_no_faster_than_is_bearable(delay: RetryDelay, clock: Clock) -> None:
    callers = 8 * BEARABLE_PER_S
    for _ in range(20):
        refuse(delay, clock, round(callers / delay.seconds), seconds=1)
    delay.note()
    assert callers / delay.seconds == pytest.approx(BEARABLE_PER_S, rel=0.05)


def test_the_delay_shrinks_when_nobody_is_refused(delay: RetryDelay, clock: Clock) -> None:
    refuse(delay, clock, 10 * BEARABLE_PER_S, seconds=10)
    delay.note()
    clock.now += 2
    delay.note()
    assert delay.seconds < LONGEST_S
    clock.now += 60
    delay.note()
    assert delay.seconds == FIRST_S


class Empty:
    """A line in which nobody stands."""

    def pending_count(self) -> int:
        return 0

    def correct(self, done: Callable[[float], None]) -> None:
        done(0.0)


@pytest.mark.parametrize("is_read_early", [True, False])
async def test_a_call_is_refused_unread_while_the_process_is_behind_and_only_then(
    clock: Clock, *, is_read_early: bool
) -> None:
    gate = Gate(Limits())
    gate.refusing = Refusing(clock=clock)
    gate.backlog = Backlog(Empty(), clock=clock)
    path = "/headway.v1.QueueService/Put"

    async def serve(_request: bytes, _context: object) -> bytes:
        return b"done"

    handlers: dict[str, Any] = {path: grpc.unary_unary_rpc_method_handler(serve)}
    completions, counts = Completions(), Counts(most_queues=1)
    server = Server(completions)
    if is_read_early:
        server.read_early([path])
    refuse = refusals([path], gate=gate, counts=counts)
    server.add_generic_rpc_handlers((CallRouter(handlers, gate=gate, refusals=refuse),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(path)
        assert await call(b"", timeout=30) == b"done"
        running = [gate.backlog.enter() for _ in range(BUSY)]
        assert await call(b"", timeout=30) == b"done"  # busy, but not behind
        gate.backlog.leave(gate.backlog.enter())  # which looks, for the last time while the clock stands
        gate.backlog.is_behind, gate.backlog.left_to_refuse = True, 10
        delays_s = set()
        for _ in range(10):
            with refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
                await call(b"", timeout=30)
            assert said.retry_delay is not None
            delays_s.add(said.retry_delay.total_seconds())
        assert min(delays_s) == SHORTEST_S
        assert len(delays_s) == 10  # those refused together do not come back together
        in_order_s = sorted(delays_s)
        gaps_s = [later - earlier for earlier, later in itertools.pairwise([*in_order_s, FIRST_S])]
        assert max(gaps_s) < 2 * (FIRST_S - SHORTEST_S) / 10
        assert await call(b"", timeout=30) == b"done"  # behind, but as many as were too many have been refused
        gate.backlog.left_to_refuse = 10
        await eventually(lambda: gate.running_count == 0)  # a reply is sent before its call has left
        for began in running:
            gate.backlog.leave(began)
        assert await call(b"", timeout=30) == b"done"
    await server.stop(None)
    completions.close()
    assert counts.calls == {("Put", "RESOURCE_EXHAUSTED"): 10}
