"""When a line of calls that nobody has accepted makes the process refuse, which calls, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from harness import eventually
from headwayd.rpc.backlog import (
    BETWEEN_CLOSE_LOOKS_S,
    BETWEEN_LOOKS_S,
    BUSY,
    CLOSE_LOOKING_SHARE,
    FEWEST_PER_S,
    FRESH_S,
    GOOD,
    LONG,
    LOOKING_SHARE,
    LOOKING_SHARE_WHILE_LONG,
    MOST_PER_S,
    PATIENCE_S,
    STALE_S,
    WATCHFUL_S,
    Backlog,
)
from headwayd.rpc.books import Books, server_ids
from unit.rpc.holding import Holding


class Line:
    """A line of so many calls, and a clock that stands until told. A look finds `ghosts` beside them, until a closer
    one has been taken."""

    def __init__(self) -> None:
        self.pending = self.ghosts = 0
        self.now = 1_000.0
        self.looks = self.close_looks = 0
        self.look_takes_s = self.close_look_takes_s = 0.0
        self.answers_late: list[Callable[[float], None]] | None = None
        self.found_behind = 0
        self.backlog = Backlog(self, found_behind=self.count_behind, clock=lambda: self.now, used=lambda: self.now)

    def count_behind(self) -> None:
        self.found_behind += 1

    def pending_count(self) -> int:
        self.looks += 1
        self.now += self.look_takes_s
        return self.pending + self.ghosts

    def correct(self, done: Callable[[float], None]) -> None:
        self.close_looks += 1
        self.ghosts = 0
        if self.answers_late is None:
            done(self.close_look_takes_s)
        else:
            self.answers_late.append(done)

    def pass_s(self, seconds: float) -> None:
        """Time passes, with as many calls as make it look, which begin and end at once."""
        end = self.now + seconds
        while self.now < end:
            self.now += BETWEEN_LOOKS_S
            for began in self.begin(BUSY + 1):
                self.backlog.leave(began)

    def begin(self, count: int) -> list[int]:
        return [self.backlog.enter() for _ in range(count)]


@pytest.fixture
def line() -> Line:
    return Line()


def test_a_line_that_stays_long_refuses_what_exceeds_a_busy_process(line: Line) -> None:
    line.pending = LONG
    line.pass_s(PATIENCE_S + 2 * BETWEEN_LOOKS_S)
    assert line.backlog.is_behind
    running = line.begin(BUSY)
    assert not line.backlog.must_refuse
    line.begin(1)
    assert line.backlog.must_refuse
    line.backlog.leave(running[0])
    assert not line.backlog.must_refuse


def test_each_look_that_finds_it_behind_is_told_of(line: Line) -> None:
    line.pending = LONG
    line.pass_s(PATIENCE_S)
    assert not line.found_behind
    line.pass_s(10 * BETWEEN_LOOKS_S)
    assert 8 <= line.found_behind <= 11
    line.pending, before = 0, line.found_behind
    line.pass_s(10 * BETWEEN_LOOKS_S)
    assert line.found_behind == before


def test_a_long_line_of_a_moment_refuses_nothing(line: Line) -> None:
    for _ in range(5):
        line.pending = LONG
        line.pass_s(PATIENCE_S - BETWEEN_LOOKS_S)
        line.pending = LONG - 1
        line.pass_s(BETWEEN_LOOKS_S)
    line.begin(2 * BUSY)
    assert not line.backlog.must_refuse


def test_it_stops_at_the_first_look_at_a_short_line_and_is_watchful_for_a_while(line: Line) -> None:
    line.pending = LONG
    line.pass_s(PATIENCE_S + 2 * BETWEEN_LOOKS_S)
    line.pending = 0
    line.pass_s(BETWEEN_LOOKS_S)
    assert not line.backlog.is_behind
    line.pending = LONG
    line.pass_s(BETWEEN_LOOKS_S)
    assert line.backlog.is_behind
    line.pending = 0
    line.pass_s(WATCHFUL_S + 2 * BETWEEN_LOOKS_S)
    line.pending = LONG
    line.pass_s(BETWEEN_LOOKS_S)
    assert not line.backlog.is_behind


def test_calls_that_have_run_for_long_are_waiting_and_do_not_count(line: Line) -> None:
    line.pending = LONG
    waiting = line.begin(10 * BUSY)
    line.pass_s(PATIENCE_S + 2 * FRESH_S + 2 * BETWEEN_LOOKS_S)
    line.begin(BUSY)
    assert line.backlog.is_behind
    assert not line.backlog.must_refuse
    for began in waiting:  # that they end changes nothing
        line.backlog.leave(began)
    line.begin(1)
    assert line.backlog.must_refuse


def test_looks_are_taken_when_calls_come_and_not_more_often_than_said(line: Line) -> None:
    line.begin(1_000)
    assert line.looks == 1
    line.now += BETWEEN_LOOKS_S
    line.begin(1_000)
    assert line.looks == 2


def test_a_process_that_need_not_refuse_does_not_look(line: Line) -> None:
    line.pending = LONG
    for _ in range(100):
        line.now += BETWEEN_LOOKS_S
        for began in line.begin(BUSY):
            line.backlog.leave(began)
    assert line.looks == 0


def test_a_look_that_takes_long_is_seldom_taken(line: Line) -> None:
    line.look_takes_s = 0.2  # as with 5,000 connections
    line.pass_s(100)
    assert line.looks * 0.2 <= 1.1 * LOOKING_SHARE * 100


def test_a_line_that_is_long_at_first_sight_only_refuses_nothing(line: Line) -> None:
    line.ghosts = LONG
    line.pass_s(10)
    line.begin(2 * BUSY)
    assert not line.backlog.must_refuse
    assert line.close_looks == 1


def test_while_it_is_behind_ghosts_are_found_and_it_stops(line: Line) -> None:
    line.pending = LONG
    line.pass_s(PATIENCE_S + 2 * BETWEEN_LOOKS_S)
    assert line.backlog.is_behind
    line.pending, line.ghosts = 0, 10 * LONG
    line.pass_s(BETWEEN_CLOSE_LOOKS_S + 2 * BETWEEN_LOOKS_S)
    assert not line.backlog.is_behind


def test_what_was_found_some_time_ago_refuses_nobody(line: Line) -> None:
    line.pending = LONG
    line.pass_s(PATIENCE_S + 2 * BETWEEN_LOOKS_S)
    assert line.backlog.is_behind
    line.now += BETWEEN_LOOKS_S + 2 * STALE_S
    line.pending, line.ghosts = 0, LONG
    line.begin(BUSY)
    assert not line.backlog.must_refuse_next
    line.begin(1)
    assert not line.backlog.must_refuse


def test_however_seldom_looks_are_a_line_that_stays_long_is_found(line: Line) -> None:
    line.pending, line.look_takes_s = LONG, 0.2
    line.pass_s(3 * 0.2 / LOOKING_SHARE)
    assert line.backlog.is_behind


def test_a_closer_look_that_takes_long_is_seldom_taken(line: Line) -> None:
    line.pending, line.close_look_takes_s = LONG, 1.0  # as with 5,000 connections
    line.pass_s(100)
    assert line.backlog.is_behind
    assert line.close_looks <= 1 + CLOSE_LOOKING_SHARE * 100


def test_only_one_closer_look_is_taken_at_a_time_and_nothing_refused_before_it(line: Line) -> None:
    line.pending, line.answers_late = LONG, []
    line.pass_s(10)
    assert not line.backlog.is_behind
    (done,) = line.answers_late
    done(0.0)
    assert line.backlog.is_behind


async def test_grpcs_books_tell_how_many_calls_nobody_has_accepted() -> None:
    holding = Holding()
    others = [grpc.aio.server() for _ in range(3)]
    before = server_ids()
    server = grpc.aio.server()
    (own,) = server_ids() - before
    others.append(grpc.aio.server())  # neither those made before nor after it
    count = Books(lambda: [own], lambda: holding.running).pending_count
    server.add_generic_rpc_handlers((holding,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/a/b")
        assert count() == 0
        calls = [call(b"", timeout=30) for _ in range(50)]
        await holding.runs(50)
        assert count() == 0  # all began, and all run
        holding.running -= 30  # as if nobody had accepted those
        assert count() == 30
        holding.running += 30
        holding.release.set()
        await asyncio.gather(*calls)
        async with asyncio.timeout(10):
            while count() > 0:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        assert count() == 0
    await server.stop(0)
    for one in others:
        await one.stop(0)


async def test_calls_that_grpc_refused_itself_are_found_to_have_ended() -> None:
    holding = Holding()
    before = server_ids()
    bounds = [(f"grpc.server.max_pending_requests{end}", 10) for end in ("", "_hard_limit")]
    server = grpc.aio.server(options=bounds)
    (own,) = server_ids() - before
    books = Books(lambda: [own], lambda: holding.running)
    server.add_generic_rpc_handlers((holding,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own_connection) for _ in range(20)]
    methods: list[Any] = [channel.unary_unary("/a/b") for channel in channels]
    calls = [method(b"", timeout=30) for method in methods for _ in range(20)]
    # Each runs or was refused: they are far more than are accepted in one turn.
    await eventually(lambda: holding.running + sum(call.done() for call in calls) == len(calls), within=20)
    refused_count = sum(call.done() for call in calls)
    assert refused_count > 0
    assert books.pending_count() == refused_count
    corrected = asyncio.Event()
    books.correct(lambda _took_s: corrected.set())
    async with asyncio.timeout(10):
        await corrected.wait()
    assert books.pending_count() == 0
    holding.running -= 30  # as if nobody had accepted those
    assert books.pending_count() == 30
    holding.running += 30
    holding.release.set()
    await asyncio.gather(*calls, return_exceptions=True)
    for channel in channels:
        await channel.close()
    await server.stop(0)


def allowed(line: Line) -> float:
    """How many calls may be refused until the next look, which is due; they are."""
    line.pass_s(BETWEEN_LOOKS_S)
    count = line.backlog.left_to_refuse
    line.begin(BUSY + 1)
    for _ in range(int(count)):
        assert line.backlog.must_refuse
        assert line.backlog.must_refuse_next
        line.backlog.refused()
    assert not line.backlog.must_refuse
    assert not line.backlog.must_refuse_next
    return count


def behind(line: Line, pending: int) -> None:
    """A line of so many has made the process behind, just now."""
    line.pending = pending
    while not line.backlog.is_behind:
        line.pass_s(BETWEEN_LOOKS_S)


def test_few_are_refused_at_first_and_twice_as_many_while_the_line_gets_no_shorter(line: Line) -> None:
    behind(line, 2 * LONG)
    counts = [allowed(line) for _ in range(8)]
    assert counts == [min(FEWEST_PER_S * 2**n, MOST_PER_S) * BETWEEN_LOOKS_S for n in range(8)]
    assert len(set(counts)) > 2


def test_half_as_many_are_refused_when_the_line_has_got_shorter(line: Line) -> None:
    behind(line, 2 * LONG)
    most = [allowed(line) for _ in range(6)][-1]
    for part in (2, 4, 8):
        line.pending -= 1
        assert allowed(line) == most / part
    assert allowed(line) == max(most / 4, FEWEST_PER_S * BETWEEN_LOOKS_S)  # it got no shorter


def test_when_the_line_was_short_few_are_refused_again(line: Line) -> None:
    behind(line, 2 * LONG)
    assert [allowed(line) for _ in range(6)][-1] == MOST_PER_S * BETWEEN_LOOKS_S
    line.pending = 0
    assert allowed(line) == 0
    behind(line, 2 * LONG)
    assert allowed(line) == FEWEST_PER_S * BETWEEN_LOOKS_S


def test_of_ghosts_found_it_is_not_thought_that_the_line_got_shorter(line: Line) -> None:
    line.pending, line.ghosts = 2 * LONG, 10 * LONG
    while not line.backlog.is_behind:
        line.pass_s(BETWEEN_LOOKS_S)
    assert allowed(line) == FEWEST_PER_S * BETWEEN_LOOKS_S


def test_half_of_a_long_line_is_left(line: Line) -> None:
    line.look_takes_s = 0.5  # as with thousands of connections: the next one is in 5 s
    behind(line, LONG)
    for _ in range(10):
        line.pass_s(0.5 / LOOKING_SHARE_WHILE_LONG)
    assert MOST_PER_S * 0.5 / LOOKING_SHARE_WHILE_LONG > LONG
    assert line.backlog.left_to_refuse == LONG - GOOD
