"""What the estimator says at the edges: with no basis, after pauses, gaps and new lives, as workers come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from eta.simulation import Job, Simulation, Trace
from eta.traces import crew
from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Eta
from headwayd.engine.eta import LONGEST_GAP_MS, MIN_EVENTS, QUIET_MS, STALE_MS, WaitEstimator

WORK_MS, WORKERS = 2_000, 4
STEP_MS = WORK_MS / WORKERS
HOUR_MS = 3_600_000

START = LineNumbers(
    generation="first", at_ms=1_700_000_000_000, logged=0, head=100, tail=1_100, length=1_000, leased=WORKERS,
    limit=0, departures=100, acked=96, consumers_waiting=0, producers_waiting=0, is_paused=False, is_closed=False,
    delayed=0, put_rate=0.0, ack_rate=0.0, consumers_ready=0, consumers_awaited=0,
)  # fmt: skip


def after(numbers: LineNumbers, ms: float, departed: int = 0, **changes: object) -> LineNumbers:
    """The queue some time later, when so many messages have left the line."""
    later = replace(
        numbers,
        at_ms=numbers.at_ms + round(ms),
        head=numbers.head + departed,
        departures=numbers.departures + departed,
        length=numbers.length - departed,
        acked=numbers.acked + departed,
    )
    return replace(later, **changes)  # type: ignore[arg-type]


def moved(estimator: WaitEstimator, numbers: LineNumbers, count: int, step_ms: float = STEP_MS) -> LineNumbers:
    """Lets so many messages leave, one by one at even distances, and returns the last look."""
    for _ in range(count):
        numbers = after(numbers, step_ms, departed=1)
        estimator.observe(numbers)
    return numbers


@pytest.fixture
def estimator() -> WaitEstimator:
    """Has seen the line move for a while: a message each half second."""
    estimator = WaitEstimator()
    estimator.observe(START)
    return estimator


@pytest.fixture
def now(estimator: WaitEstimator) -> LineNumbers:
    """The last look of `estimator`."""
    return moved(estimator, START, 100)


def p50_of(estimator: WaitEstimator, position: int) -> int:
    eta = estimator.estimate(position)
    assert eta is not None
    return eta.p50_ms


def is_near(value: float, expected: float, share: float = 0.1) -> bool:
    return abs(value - expected) <= share * expected


def test_nothing_is_known_before_the_first_look() -> None:
    assert WaitEstimator().estimate(1) is None
    assert WaitEstimator().estimate_slot(1) is None


@pytest.mark.parametrize(("events", "is_known"), [(MIN_EVENTS - 1, False), (MIN_EVENTS, True), (MIN_EVENTS + 1, True)])
def test_a_wait_is_known_from_a_few_departures_on(estimator: WaitEstimator, events: int, is_known: bool) -> None:
    moved(estimator, START, events)
    assert (estimator.estimate(10) is not None) == is_known


def test_position_0_does_not_wait(estimator: WaitEstimator, now: LineNumbers) -> None:
    assert estimator.estimate(0) is None
    assert estimator.estimate_slot(0) is None


@pytest.mark.parametrize("position", [1, 10, 100, 900])
def test_a_line_that_moves_evenly_is_foretold(estimator: WaitEstimator, now: LineNumbers, position: int) -> None:
    assert is_near(p50_of(estimator, position), position * STEP_MS, 0.4 if position == 1 else 0.1)


def test_a_newcomer_waits_longer_than_the_last_in_line(estimator: WaitEstimator, now: LineNumbers) -> None:
    assert p50_of(estimator, now.length + 1) > p50_of(estimator, now.length)


def test_p90_comes_nearer_to_p50_where_waits_are_even(estimator: WaitEstimator) -> None:
    numbers = moved(estimator, START, 20)
    first = estimator.estimate(10)
    moved(estimator, numbers, 500)
    then = estimator.estimate(10)
    assert first is not None
    assert then is not None
    assert then.p90_ms / then.p50_ms < 0.9 * first.p90_ms / first.p50_ms


def test_nothing_is_known_while_paused(estimator: WaitEstimator, now: LineNumbers) -> None:
    estimator.observe(after(now, 50, is_paused=True))
    assert estimator.estimate(10) is None
    assert estimator.estimate_slot(1) is None


def test_a_pause_is_no_slowness_and_its_end_no_new_beginning(estimator: WaitEstimator, now: LineNumbers) -> None:
    before = p50_of(estimator, 50)
    numbers = after(now, 50, is_paused=True)
    estimator.observe(numbers)
    for left in (3, 2, 1, 0):
        numbers = after(numbers, STEP_MS, leased=left, acked=numbers.acked + 1)
        estimator.observe(numbers)
    for _ in range(60):
        numbers = after(numbers, 10_000)
        estimator.observe(numbers)
    estimator.observe(after(numbers, 50, is_paused=False))
    assert is_near(p50_of(estimator, 50), before)


def test_another_generation_is_another_queue(estimator: WaitEstimator, now: LineNumbers) -> None:
    numbers = after(now, 50, generation="second", departures=0, head=0, tail=1_000, length=1_000)
    estimator.observe(numbers)
    assert estimator.estimate(10) is None
    moved(estimator, numbers, 50, step_ms=50)
    assert is_near(p50_of(estimator, 10), 10 * 50)


def test_a_line_without_consumers_has_no_wait_to_tell(estimator: WaitEstimator, now: LineNumbers) -> None:
    numbers = after(now, 50, leased=0)
    while numbers.at_ms <= now.at_ms + 5 * max(QUIET_MS, STEP_MS) + 100:
        estimator.observe(numbers)
        numbers = after(numbers, 1_000)
    assert estimator.estimate(1) is None
    back = after(numbers, 50, leased=WORKERS)
    estimator.observe(back)
    assert is_near(p50_of(estimator, 10), 10 * STEP_MS)


def test_consumers_who_hold_nothing_for_a_moment_are_not_gone(estimator: WaitEstimator, now: LineNumbers) -> None:
    estimator.observe(after(now, 50, leased=0))
    assert estimator.estimate(1) is not None


def test_a_line_that_never_had_a_consumer_has_no_wait_to_tell() -> None:
    estimator, numbers = WaitEstimator(), replace(START, leased=0)
    for _ in range(100):
        numbers = after(numbers, 50)
        estimator.observe(numbers)
    assert estimator.estimate(1) is None


@pytest.mark.parametrize("gap_ms", [LONGEST_GAP_MS + 1, HOUR_MS, 10_000 * HOUR_MS])
@pytest.mark.parametrize("departed", [0, 900])
def test_a_huge_gap_teaches_nothing(estimator: WaitEstimator, now: LineNumbers, gap_ms: int, departed: int) -> None:
    before = p50_of(estimator, 10)
    estimator.observe(after(now, gap_ms, departed=departed))
    assert is_near(p50_of(estimator, 10), before)


def test_who_was_gone_before_a_gap_was_not_seen_behind_it(estimator: WaitEstimator, now: LineNumbers) -> None:
    gone = after(now, 50, leased=0)
    estimator.observe(gone)
    back = after(gone, HOUR_MS, leased=0)
    estimator.observe(back)
    assert estimator.estimate(10) is None
    estimator.observe(after(back, 50, leased=WORKERS))
    assert estimator.estimate(10) is not None


def test_what_came_after_a_gap_is_learned_soon(estimator: WaitEstimator, now: LineNumbers) -> None:
    numbers = after(now, HOUR_MS)
    estimator.observe(numbers)
    moved(estimator, numbers, 12, step_ms=5 * STEP_MS)
    assert is_near(p50_of(estimator, 10), 10 * 5 * STEP_MS, 0.3)


def test_a_clock_that_went_back_does_no_harm(estimator: WaitEstimator, now: LineNumbers) -> None:
    before = p50_of(estimator, 10)
    numbers = after(now, -HOUR_MS)
    estimator.observe(numbers)
    assert is_near(p50_of(estimator, 10), before)
    moved(estimator, numbers, 30)
    assert is_near(p50_of(estimator, 10), before)


def test_any_number_of_departures_between_two_looks_is_learned_from(estimator: WaitEstimator, now: LineNumbers) -> None:
    for departed in (10**6, 10**9, 1, 10**9):
        now = after(now, 5_000, departed=departed, length=1_000)
        estimator.observe(now)
        assert 0 <= p50_of(estimator, 10) < HOUR_MS
    moved(estimator, now, 1_500)
    assert is_near(p50_of(estimator, 10), 10 * STEP_MS, 0.3)


def test_of_two_looks_at_one_instant_the_later_counts(estimator: WaitEstimator, now: LineNumbers) -> None:
    estimator.observe(replace(now, is_paused=True))
    assert estimator.estimate(1) is None
    estimator.observe(now)
    assert estimator.estimate(1) is not None


def test_more_workers_shorten_the_wait_at_once(estimator: WaitEstimator, now: LineNumbers) -> None:
    before = p50_of(estimator, 100)
    estimator.observe(after(now, 50, departed=WORKERS, leased=2 * WORKERS))
    assert is_near(p50_of(estimator, 100), before / 2)


def test_a_smaller_limit_lengthens_the_wait_at_once(estimator: WaitEstimator, now: LineNumbers) -> None:
    before = p50_of(estimator, 100)
    estimator.observe(after(now, 50, limit=WORKERS // 2))
    assert is_near(p50_of(estimator, 100), before * 2)


def test_work_that_takes_four_times_as_long_is_noticed_within_forty_messages(
    estimator: WaitEstimator, now: LineNumbers
) -> None:
    moved(estimator, now, 40, step_ms=4 * STEP_MS)
    assert is_near(p50_of(estimator, 100), 4 * 100 * STEP_MS, 0.2)


def test_a_standstill_lengthens_the_wait(estimator: WaitEstimator, now: LineNumbers) -> None:
    before, numbers = p50_of(estimator, 10), now
    for _ in range(60):
        numbers = after(numbers, 10_000)
        estimator.observe(numbers)
    assert p50_of(estimator, 10) > 3 * before


def test_messages_that_come_back_ahead_count_as_often_as_they_leave(estimator: WaitEstimator) -> None:
    numbers = START
    for step in range(400):
        is_repeated = step % 2 == 1
        numbers = after(numbers, STEP_MS, departed=1)
        if is_repeated:
            numbers = replace(numbers, head=numbers.head - 1, length=numbers.length + 1)
        estimator.observe(numbers)
    assert is_near(p50_of(estimator, 100), 2 * 100 * STEP_MS)


def test_consumers_who_hold_no_leases_are_known_by_the_departures(estimator: WaitEstimator) -> None:
    numbers = replace(START, leased=0)
    estimator = WaitEstimator()
    estimator.observe(numbers)
    moved(estimator, numbers, 50)
    assert is_near(p50_of(estimator, 100), 100 * STEP_MS)


@pytest.mark.parametrize("rest_s", [0.0, 1.0, 4.0])
def test_workers_who_rest_between_messages_are_believed_to_go_on_so(rest_s: float) -> None:
    trace = Trace("resting", [Job(0.0, 2.0 + 0.01 * (n % 7)) for n in range(400)], crew(WORKERS), rest_s=rest_s)
    simulation, estimator = Simulation(trace, watched_every=7), WaitEstimator()
    for state, _ in simulation.looks():
        estimator.observe(simulation.numbers())
        if state.head >= 200:
            break
    assert is_near(p50_of(estimator, 100), 100 * (2_000 + 1_000 * rest_s) / WORKERS, 0.15)


@dataclass(frozen=True)
class Leases:
    """So many messages that one worker has from one instant to another, in ms since the start."""

    begin_ms: int
    end_ms: int
    count: int = 1


def crews(count: int, *, every_ms: int, work_ms: int, batch: int = 1, until_ms: int = 10**6) -> list[Leases]:
    """Workers who take a batch each so often, evenly one after the other, and settle it together."""
    begins = (at + worker * every_ms // count for at in range(0, until_ms, every_ms) for worker in range(count))
    return [Leases(at, at + work_ms, batch) for at in begins]


def watched(estimator: WaitEstimator, leases: Sequence[Leases], until_ms: int, every_ms: int = 83) -> Iterator[int]:
    """Looks at a line that is never empty, each so often. Yields when, in ms since the start."""
    for at_ms in range(0, until_ms, every_ms):
        begun = sum(each.count for each in leases if each.begin_ms <= at_ms)
        leased = sum(each.count for each in leases if each.begin_ms <= at_ms < each.end_ms)
        looked = after(replace(START, tail=10**6 + 100, length=10**6), at_ms, departed=begun, leased=leased)
        estimator.observe(replace(looked, acked=START.acked + begun - leased))
        yield at_ms


@pytest.mark.parametrize("rest_ms", [0, 100, 1_000])
@pytest.mark.parametrize(("workers", "batch"), [(1, 8), (1, 16), (1, 50), (2, 25), (1, 100), (10, 100)])
def test_leases_that_are_settled_together_are_foretold_from_the_one_batch_to_the_next(
    workers: int, batch: int, rest_ms: int
) -> None:
    """What nobody sees end between two batches has not stopped, and a batch is no burst."""
    estimator = WaitEstimator()
    leases = crews(workers, every_ms=2_000 + rest_ms, work_ms=2_000, batch=batch, until_ms=60_000)
    step_ms = (2_000 + rest_ms) / (workers * batch)
    told = [p50_of(estimator, 1_000) for at_ms in watched(estimator, leases, 60_000) if at_ms > 10_000]
    assert min(told) / (1_000 * step_ms) > 0.6
    assert max(told) / (1_000 * step_ms) < 1.6


@pytest.mark.parametrize(("work_ms", "every_ms"), [(3, 30), (1, 21), (10, 50), (40, 50)])
def test_work_that_is_done_between_two_looks_is_no_slower_for_it(work_ms: int, every_ms: int) -> None:
    estimator = WaitEstimator()
    for _ in watched(estimator, crews(1, every_ms=every_ms, work_ms=work_ms, until_ms=40_000), 40_000):
        pass
    assert is_near(p50_of(estimator, 1_000), 1_000 * every_ms, 0.15)


@pytest.mark.parametrize(
    ("workers", "batch", "work_ms", "every_ms"),
    [(1, 1, 300, 5_000), (1, 10, 300, 5_000), (10, 1, 1_000, 10_000), (1, 100, 1_000, 10_000)],
)
def test_workers_who_rest_longer_than_they_work_are_believed_to_go_on_so(
    workers: int, batch: int, work_ms: int, every_ms: int
) -> None:
    estimator = WaitEstimator()
    leases = crews(workers, every_ms=every_ms, work_ms=work_ms, batch=batch, until_ms=200_000)
    told = [
        eta.p50_ms
        for at_ms in watched(estimator, leases, 200_000)
        if at_ms > 100_000 and (eta := estimator.estimate(1_000)) is not None
    ]
    expected = 1_000 * every_ms / (workers * batch)
    assert min(told) / expected > 0.7
    assert max(told) / expected < 1.4


def test_many_that_leave_at_once_are_no_batch_for_long(estimator: WaitEstimator) -> None:
    """As when others take all that waits, once."""
    estimator = WaitEstimator()
    leases = [*crews(4, every_ms=400, work_ms=400, until_ms=100_000), Leases(50_000, 50_000, 10_000)]
    told = [p50_of(estimator, 100) for at_ms in watched(estimator, leases, 100_000) if at_ms > 80_000]
    assert min(told) / (100 * 100) > 0.7
    assert max(told) / (100 * 100) < 1.3


def test_workers_who_leave_lengthen_the_wait_soon(estimator: WaitEstimator) -> None:
    """However long their work takes: they are not waited for as long."""
    work_ms = 1_800_000
    begin = [
        Leases(at + worker * 180_000, at + worker * 180_000 + work_ms)
        for at in (0, work_ms, 2 * work_ms)
        for worker in range(10)
    ]
    stays = [Leases(at, at + work_ms) for at in (3 * work_ms, 4 * work_ms)]
    estimator = WaitEstimator()
    left_ms = 3 * work_ms + 9 * 180_000  # when the last of the others is done
    for _ in watched(estimator, [*begin, *stays], left_ms + 10_000, every_ms=5_000):
        pass
    assert is_near(p50_of(estimator, 20), 20 * work_ms, 0.2)


def test_leases_are_not_taken_for_what_foreign_consumers_took_before(estimator: WaitEstimator) -> None:
    estimator = WaitEstimator()
    foreign = [Leases(at, at) for at in range(0, 60_000, 10)]
    ours = crews(1, every_ms=1_000, work_ms=1_000, until_ms=120_000)
    for _ in watched(estimator, [*foreign, *(each for each in ours if each.begin_ms >= 60_000)], 70_000):
        pass
    assert is_near(p50_of(estimator, 100), 100 * 1_000, 0.2)


def test_a_consumer_who_waits_with_a_free_slot_takes_what_comes_at_once() -> None:
    estimator = WaitEstimator()
    idle = replace(START, length=0, head=START.tail, leased=0, consumers_waiting=2, consumers_ready=2)
    estimator.observe(idle)
    assert [estimator.estimate(position) for position in (1, 2, 3)] == [Eta(0, STALE_MS), Eta(0, STALE_MS), None]
    estimator.observe(after(idle, 50, leased=3, limit=4))
    assert [estimator.estimate(position) for position in (1, 2)] == [Eta(0, STALE_MS), None]
    estimator.observe(after(idle, 100, leased=4, limit=4))
    assert estimator.estimate(1) is None


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_what_may_be_held_back_for_a_poll_has_no_wait_that_is_known(
    estimator: WaitEstimator, now: LineNumbers, ready: int
) -> None:
    kept = {"consumers_waiting": ready + 1, "consumers_ready": ready, "consumers_awaited": 1}
    at_once = [Eta(0, STALE_MS)] * ready
    for number, length in enumerate(range(ready + 2), 1):
        estimator.observe(after(now, 50 * number, leased=0, length=length, **kept))
        assert [estimator.estimate(position) for position in range(1, ready + 4)] == [*at_once, None, None, None]


def test_a_poll_that_is_waited_for_holds_nothing_back_from_others_where_more_waits_or_no_slot_is_free(
    estimator: WaitEstimator, now: LineNumbers
) -> None:
    before = p50_of(estimator, 2)
    kept = {"consumers_waiting": 1, "consumers_awaited": 1}
    estimator.observe(after(now, 50, length=2, **kept))
    assert is_near(p50_of(estimator, 2), before)
    estimator.observe(after(now, 100, length=1, limit=WORKERS, **kept))
    assert is_near(p50_of(estimator, 2), before)


def test_a_place_that_nobody_may_come_back_to_is_no_consumer(estimator: WaitEstimator, now: LineNumbers) -> None:
    before = p50_of(estimator, 100)
    numbers = after(now, 50, consumers_waiting=100)
    estimator.observe(numbers)
    assert is_near(p50_of(estimator, 100), before), "nor a slot"
    while numbers.at_ms <= now.at_ms + 5 * max(QUIET_MS, STEP_MS) + 100:
        numbers = after(numbers, 1_000, leased=0)
        estimator.observe(numbers)
    assert estimator.estimate(1) is None


def fed(estimator: WaitEstimator, count: int, standing: int) -> LineNumbers:
    """Consumers stand in an empty line, and each two seconds a message comes and one of them is served."""
    numbers = replace(START, length=0, head=START.tail, leased=0, consumers_waiting=standing, consumers_ready=standing)
    estimator.observe(numbers)
    for _ in range(count):
        numbers = after(numbers, 2_000, departed=1, length=0)
        estimator.observe(numbers)
    return numbers


@pytest.mark.parametrize(("events", "is_known"), [(MIN_EVENTS - 1, False), (MIN_EVENTS, True)])
def test_a_consumers_wait_is_known_once_some_were_served(events: int, is_known: bool) -> None:
    estimator = WaitEstimator()
    fed(estimator, events, standing=5)
    assert (estimator.estimate_slot(1) is not None) == is_known


@pytest.mark.parametrize("standing", [1, 5])
def test_consumers_are_served_as_fast_as_messages_came_for_them(standing: int) -> None:
    estimator = WaitEstimator()
    fed(estimator, 50, standing)
    eta = estimator.estimate_slot(10)
    assert eta is not None
    assert is_near(eta.p50_ms, 20_000)
    assert eta.p90_ms > eta.p50_ms


def test_a_consumer_is_served_at_once_if_a_message_waits_and_a_slot_is_free() -> None:
    estimator = WaitEstimator()
    estimator.observe(replace(START, length=1, consumers_waiting=5, consumers_ready=5))
    assert [estimator.estimate_slot(position) for position in (1, 2)] == [Eta(0, STALE_MS), None]


def test_line_without_standing_consumers_says_nothing_about_theirs(estimator: WaitEstimator, now: LineNumbers) -> None:
    assert estimator.estimate_slot(1) is None


def test_pauses_count_for_nobodys_wait(estimator: WaitEstimator) -> None:
    numbers = fed(estimator, 50, standing=3)
    before = estimator.estimate_slot(3)
    numbers = after(numbers, 50, is_paused=True)
    estimator.observe(numbers)
    for is_paused in (*[True] * 60, False):
        numbers = after(numbers, 10_000, is_paused=is_paused)
        estimator.observe(numbers)
    then = estimator.estimate_slot(3)
    assert before is not None
    assert then is not None
    assert is_near(then.p50_ms, before.p50_ms)


def test_estimates_end_at_three_years(estimator: WaitEstimator, now: LineNumbers) -> None:
    assert estimator.estimate(10**30) == Eta(10**11, 10**11)
    fed(estimator, 50, standing=3)
    assert estimator.estimate_slot(10**30) == Eta(10**11, 10**11)
