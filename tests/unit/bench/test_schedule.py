"""The benchmark beside peers keeps to the minutes it is given, and gives each peer as many messages as fit."""

from dataclasses import replace

import pytest

from bench.peers.contest import LEAST_COUNT, Cell, Run, sized
from bench.peers.schedule import LEAST_S, LINE_S, PHASES, RUN_S, Plan, Schedule

CELL = Cell(count=200_000, size=256, clients=1, patience_s=20)


def test_minutes_are_spent_and_not_more() -> None:
    plan = Plan(lines=60, runs=3, seconds=20, minutes=20)
    assert plan.longest_s() == pytest.approx(20 * 60)


def test_without_minutes_a_phase_has_its_seconds() -> None:
    plan = Plan(lines=60, runs=3, seconds=20)
    assert Schedule(plan, lambda: 0.0).begin_run(5.0) == 20
    assert plan.longest_s() > 60 * 3 * PHASES * 20


def test_all_is_done_in_time_if_each_takes_what_it_may() -> None:
    clock = [0.0]
    plan = Plan(lines=6, runs=3, seconds=20, minutes=5)
    schedule = Schedule(plan, lambda: clock[0])
    for _table in range(2):
        for _line in range(3):
            schedule.begin_line()
            clock[0] += LINE_S + RUN_S
        for _run in range(3 * plan.runs):
            phase_s = schedule.begin_run(RUN_S)
            assert phase_s == pytest.approx(plan.phase_s())
            clock[0] += RUN_S + PHASES * phase_s
    assert clock[0] == pytest.approx(5 * 60)


def test_what_a_run_does_not_need_those_behind_it_have() -> None:
    clock = [0.0]
    schedule = Schedule(Plan(lines=3, runs=2, seconds=20, minutes=1), lambda: clock[0])
    first = schedule.begin_run(1.0)
    clock[0] = 5.0
    assert schedule.begin_run(1.0) > first


def test_what_is_left_out_leaves_its_time_to_others() -> None:
    one, other = (Schedule(Plan(lines=3, runs=2, seconds=20, minutes=1), lambda: 0.0) for _ in range(2))
    other.leave_out(2)
    assert other.begin_run(1.0) > one.begin_run(1.0)


def test_a_run_that_comes_too_late_still_has_the_least() -> None:
    clock = [0.0]
    schedule = Schedule(Plan(lines=1, runs=2, seconds=20, minutes=1), lambda: clock[0])
    clock[0] = 100.0
    assert [schedule.begin_run(1.0) for _ in range(3)] == [LEAST_S] * 3


def test_phases_take_their_seconds_on_average() -> None:
    run = Run(put=1_000, take=500, both=250, fault="", count=1_000)
    count = sized(CELL, run, seconds=7).count
    assert sum(count / rate for rate in run.rates) == pytest.approx(3 * 7)


def test_fast_peers_get_no_more_messages_than_asked_for() -> None:
    assert sized(CELL, Run(1e6, 1e6, 1e6, "", count=1_000), seconds=20) == CELL


def test_a_phase_that_was_given_up_is_slow() -> None:
    given_up = Run(put=10_000, take=0, both=0, fault="300 missing", count=1_000)
    assert sized(CELL, given_up, seconds=20).count <= 1_500  # what 50 a second give


def test_the_slowest_get_enough_messages_to_measure() -> None:
    assert sized(CELL, Run(1, 1, 1, "", count=100), seconds=1).count == LEAST_COUNT
    assert sized(replace(CELL, count=200), Run(1, 1, 1, "", count=100), seconds=1).count == 200
