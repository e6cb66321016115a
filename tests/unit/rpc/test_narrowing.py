"""When a flood is seen, how few calls it is left, and when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from headwayd.rpc.backlog import LONG
from headwayd.rpc.books import Books, Connection, Look
from headwayd.rpc.narrowing import (
    AGAIN_S,
    CALM_S,
    LASTS_S,
    LEAST,
    LINES,
    LOOKING_SHARE_IN_FLOODS,
    MOST_NARROW_S,
    OVERFULL,
    RECENT_S,
    SOON_S,
    Narrowing,
    narrow_bound,
)
from headwayd.sockets import CannotListen

FLOODING = Connection(begun=5_000, open=1_200)
QUIET = Connection(begun=3, open=2)
BOUNDS = {"calls": 1_200, "most_waiting": 5_000, "max_streams": 10_100}
FEW = 1_200 // 8
MAX_PENDING = 10_000


@pytest.mark.parametrize(
    ("connections", "bound"),
    [
        pytest.param([FLOODING] * 8, FEW, id="each of those that flood has its share"),
        pytest.param([FLOODING], 1_200, id="one alone has all"),
        pytest.param([FLOODING] * 8 + [QUIET] * 100, FEW, id="who does not flood has no part in it"),
        pytest.param([FLOODING] * 200, LEAST, id="nobody has too few to work"),
        pytest.param([FLOODING] * 400, None, id="so many that the least of each is too much together"),
        pytest.param([FLOODING] * 8 + [Connection(3, 200)], 400, id="who waits for much can go on to do so"),
        pytest.param([FLOODING] * 8 + [Connection(3, 400)], None, id="unless the flood could, too"),
        pytest.param([Connection(0, 5_000)] * 8, None, id="nobody begins anything"),
        pytest.param([], None, id="nobody is there"),
    ],
)
def test_how_many_calls_a_connection_may_have(connections: list[Connection], bound: int | None) -> None:
    assert narrow_bound(connections, **BOUNDS) == bound


def test_no_connection_gets_more_than_it_has_in_any_case() -> None:
    assert narrow_bound([FLOODING] * 8, **BOUNDS | {"max_streams": FEW + 1}) == FEW
    assert narrow_bound([FLOODING] * 8, **BOUNDS | {"max_streams": FEW}) is None


class Process(Books):
    """Books that say what they are told to, the counts of a process, and a clock that moves with each look."""

    def __init__(self) -> None:
        super().__init__(list, lambda: 0)
        self.now = 1_000.0
        self.pending = self.fresh_count = self.streams_begun_count = 0
        self.looks = self.streams_between_looks = 0
        self.on_look: Callable[[], None] = lambda: None
        self.renewed: list[int | None] = []
        self.told_of_flood = 0
        self.refusals_to_renew = 0
        self.look_takes_s = 0.0
        self.narrowing = Narrowing(
            self,
            renew=self.renew,
            floods=self.floods,
            counts=self,
            calls=1_200,
            max_pending=MAX_PENDING,
            max_streams=10_100,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def floods(self) -> None:
        self.told_of_flood += 1

    def pending_count(self) -> int:
        return self.pending

    def correct(self, done: Callable[[float], None]) -> None:
        self.looks += 1
        self.streams_begun_count += self.streams_between_looks
        self.last_look = replace(self.last_look)  # another one that saw the same
        self.on_look()
        done(self.look_takes_s)

    async def renew(self, max_streams: int | None) -> None:
        if self.refusals_to_renew:
            self.refusals_to_renew -= 1
            raise CannotListen("taken")
        self.renewed.append(max_streams)

    def look(self, *, accepted: int = 1_000, refused: int = 0, streams: int = 0, after_s: float = 1.0) -> None:
        """What the next look sees; then it is taken."""
        self.now += after_s
        self.streams_between_looks = streams
        self.last_look = Look(accepted + refused, refused, (FLOODING,) * 8)
        self.narrowing.correct(lambda _took_s: None)

    def flood(self) -> None:
        """Looks that see one, at a time when the last look is recent, for as long as it must last."""
        self.pending = LONG
        self.look()
        self.look(refused=10_000)
        self.look(refused=10_000, after_s=LASTS_S)


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    one = Process()
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await real_sleep(0)
        one.now += seconds

    monkeypatch.setattr("headwayd.rpc.narrowing.asyncio.sleep", sleep)
    yield one
    one.narrowing.end()
    await real_sleep(0)


async def turns(count: int = 20) -> None:
    """So many seconds of the process."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_flood_makes_connections_narrow_until_it_is_over(process: Process) -> None:
    assert not process.narrowing.is_narrow
    process.flood()
    await turns(100)
    assert process.renewed == [FEW]
    assert process.narrowing.is_narrow
    process.pending = 0
    over_at = process.now
    while len(process.renewed) < 2:
        await turns(1)
    assert process.renewed == [FEW, None]
    assert process.now - over_at >= CALM_S
    await turns(1)
    assert not process.narrowing.is_narrow


@pytest.mark.parametrize("busy", [{"pending": 601}, {"fresh_count": 601}, {"pending": 301, "fresh_count": 300}])
async def test_it_is_not_over_while_many_calls_wait_or_have_just_begun(process: Process, busy: dict[str, int]) -> None:
    process.flood()
    process.pending = 0
    for name, count in busy.items():
        setattr(process, name, count)
    await turns(200)
    assert process.renewed == [FEW]
    assert process.looks > 100  # what gRPC refused in the meantime is not taken for calls that wait


async def test_after_the_longest_time_it_is_seen_whether_it_is_over(process: Process) -> None:
    process.flood()
    began = process.now
    while len(process.renewed) < 2:
        await turns(1)
    assert process.now - began >= MOST_NARROW_S


async def test_when_the_next_flood_comes_soon_it_takes_longer_to_be_over(process: Process) -> None:
    narrow_s = []
    for rest_s in (0.0, 5.0, 5.0, 10 * MOST_NARROW_S):
        process.now += rest_s
        process.flood()
        process.pending, began, seen = 0, process.now, len(process.renewed)
        while len(process.renewed) < seen + 2:
            await turns(1)
        narrow_s.append(process.now - began)
        await turns(5)
    assert [round(seconds / CALM_S) for seconds in narrow_s] == [1, 2, 4, 1]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"refused": 1_000}, id="clients that heed what refusals say"),
        pytest.param({"refused": 10_000, "streams": 500}, id="many streams opened at once"),
        pytest.param({}, id="nobody was refused"),
    ],
)
async def test_what_is_no_flood(process: Process, seen: dict[str, int]) -> None:
    process.pending = LONG
    for _ in range(10):
        process.look(**seen)
        await turns()
    assert process.renewed == []


async def test_a_line_that_is_short_is_no_flood(process: Process) -> None:
    process.pending = LONG - 1
    for _ in range(10):
        process.look(refused=10_000)
        await turns()
    assert process.renewed == []


async def test_what_was_refused_since_long_ago_is_looked_at_again_first(process: Process) -> None:
    process.pending = LONG
    process.look(refused=10_000, after_s=2 * RECENT_S)
    process.on_look = lambda: setattr(process, "last_look", Look(1_100, 100, (FLOODING,) * 8))
    await turns()
    assert process.looks == 2
    assert process.renewed == []  # that was then


async def test_once_seen_it_is_looked_for_until_it_has_lasted(process: Process) -> None:
    process.pending = LONG
    process.look(refused=MAX_PENDING // 2 - 1, after_s=2 * RECENT_S)
    began = process.now
    while not process.renewed:
        await turns(1)
    assert process.renewed == [FEW]
    assert LASTS_S <= process.now - began <= LASTS_S + 3 * AGAIN_S


async def test_a_large_one_need_not_last(process: Process) -> None:
    process.pending = LONG
    process.look(refused=MAX_PENDING, after_s=2 * RECENT_S)  # any time ago
    began = process.now
    while not process.renewed:
        await turns(1)
    assert process.renewed == [FEW]
    assert process.now - began == pytest.approx(LINES * SOON_S)


async def test_nor_is_one_large_that_was_interrupted(process: Process) -> None:
    process.pending = LONG
    process.look()
    for _ in range(10):
        for _ in range(LINES - 1):
            process.look(refused=MAX_PENDING, after_s=SOON_S)
        process.look(refused=10, after_s=SOON_S)
        await turns()
    assert process.renewed == []


async def test_looks_that_take_long_are_further_apart(process: Process) -> None:
    process.pending, process.look_takes_s = LONG, 0.03  # as of 150 connections
    process.look(refused=MAX_PENDING, after_s=2 * RECENT_S)
    began = process.now
    while not process.renewed:
        await turns(1)
    assert process.now - began == pytest.approx(LINES * 0.03 / LOOKING_SHARE_IN_FLOODS)


async def test_that_more_wait_than_can_makes_it_look(process: Process) -> None:
    most = int(OVERFULL * MAX_PENDING)
    process.pending = most
    assert process.narrowing.pending_count() == most
    await turns()
    assert process.looks == 0
    process.pending += 1
    assert process.narrowing.pending_count() == most + 1
    process.pending = 0  # gRPC had refused them
    await turns()
    assert process.looks == 1
    process.narrowing.end()
    process.pending = most + 1
    process.narrowing.pending_count()
    await turns()
    assert process.looks == 1


async def test_that_look_too_is_not_taken_too_often(process: Process) -> None:
    process.pending, process.look_takes_s = LONG, 0.06
    process.look()
    process.pending = 2 * MAX_PENDING
    began = process.now
    process.on_look = lambda: setattr(process, "pending", 0)
    process.narrowing.pending_count()
    await turns()
    assert process.looks == 2
    assert process.now - began == pytest.approx(0.06 / LOOKING_SHARE_IN_FLOODS)


async def test_what_several_asked_for_counts_once(process: Process) -> None:
    process.pending = LONG
    process.look()
    seen = Look(10_000, MAX_PENDING - 1, (FLOODING,) * 8)
    for _ in range(2 * LINES):
        process.on_look = lambda: setattr(process, "last_look", seen)
        process.narrowing.correct(lambda _took_s: None)
    process.pending = 0
    await turns()
    assert process.renewed == []


async def test_a_moment_now_and_one_long_ago_are_no_flood(process: Process) -> None:
    process.pending = LONG
    process.look()
    process.look(refused=10_000)
    process.look(refused=10_000, after_s=2 * RECENT_S)
    process.pending = 0
    await turns()
    assert process.renewed == []


async def test_what_lasts_for_a_moment_is_no_flood(process: Process) -> None:
    process.pending = LONG
    process.look()
    for _ in range(5):  # as of clients that come back when they were told to
        process.look(refused=10_000)
        process.look(refused=10_000, after_s=LASTS_S - 0.1)
        process.look(refused=10, after_s=0.1)
        await turns()
    assert process.renewed == []


async def test_while_connections_are_narrow_nothing_makes_them_so_again(process: Process) -> None:
    process.flood()
    await turns()
    process.look(refused=10_000)
    await turns()
    assert process.renewed == [FEW]


async def test_where_nobody_can_listen_anew_all_stays_as_it_is_and_is_tried_again(process: Process) -> None:
    process.refusals_to_renew = 1
    process.flood()
    while not process.renewed:
        await turns(1)
    assert process.renewed == [FEW]
    process.refusals_to_renew, process.pending = 2, 0
    while len(process.renewed) < 2:
        await turns(1)
    assert process.renewed == [FEW, None]


async def test_it_is_told_of_the_flood_until_that_is_over(process: Process) -> None:
    await turns(5)
    assert process.told_of_flood == 0
    process.flood()
    await turns(20)
    assert process.told_of_flood > 10
    process.pending = 0
    await turns(1)
    told = process.told_of_flood
    while process.narrowing.is_narrow:
        await turns(1)
    assert process.told_of_flood == told


async def test_a_process_that_goes_down_leaves_all_as_it_is(process: Process) -> None:
    process.flood()
    process.narrowing.end()
    process.flood()
    await turns(100)
    assert process.renewed == []
