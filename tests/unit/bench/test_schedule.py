"""The benchmark beside peers keeps to the minutes it is given, and gives each peer as many messages as fit."""

from dataclasses import replace

import pytest

from bench.peers.contest import LEAST_COUNT, Cell, Run, sized
from bench.peers.schedule import LEAST_S, PHASES, Plan, Schedule

CELL = Cell(count=200_000, size=256, clients=1, patience_s=20)


def test_minutes_are_spent_and_not_more() -> None:
    plan = Plan(lines=60, runs=3, seconds=20, minutes=20)
    assert plan.longest_s() == pytest.approx(20 * 60)


def test_without_minutes_a_phase_has_its_seconds() -> None:
    plan = Plan(lines=60, runs=3, seconds=20)
    assert Schedule(plan, lambda: 0.0).phase_s(3, 5.0) == 20
    assert plan.longest_s() > 60 * 3 * PHASES * 20


def test_what_a_line_does_not_need_those_behind_it_have() -> None:
    clock = [0.0]
    schedule = Schedule(Plan(lines=3, runs=2, seconds=20, minutes=1), lambda: clock[0])
    schedule.begin_line()
    first = schedule.phase_s(2, 1.0)
    clock[0] = 5.0
    schedule.begin_line()
    assert schedule.phase_s(2, 1.0) > first


def test_a_line_that_comes_too_late_still_has_the_least() -> None:
    clock = [0.0]
    schedule = Schedule(Plan(lines=1, runs=2, seconds=20, minutes=1), lambda: clock[0])
    clock[0] = 100.0
    schedule.begin_line()
    assert schedule.phase_s(2, 1.0) == LEAST_S


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
