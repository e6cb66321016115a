"""The peers of a table run in turn, and one that cannot be measured keeps nobody else from it."""

import copy
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.peers import run
from bench.peers.catalogue import BOTH, GO, Peer
from bench.peers.contest import Cell, Contest, Run
from bench.peers.places import Missing
from bench.peers.schedule import Plan, Schedule
from bench.peers.servers import EVERYSEC, Server

OPTIONS = Namespace(
    peers=["Headway, streams", "slow", "fast"],
    messages=100,
    batch=10,
    unconfirmed=[20],
    processes=[0],
    runs=2,
    warm_up=10,
    markdown=None,
    section="none",
    keep=None,
)


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What servers and runs there were, of peers that need no server."""
    said: list[str] = []

    def peer(name: str) -> Peer:
        @contextmanager
        def server(_folder: Path, _durability: str) -> Iterator[Server]:
            said.append(f"{name} begins")
            yield Server(name, "1.0")
            said.append(f"{name} ends")

        return Peer(server=server, driver=name, environment=GO, library="", mode="", durabilities=BOTH)

    def one(contest: Contest) -> Run:
        said.append(f"{contest.peer.driver} {contest.cell.count}")
        return Run(put=100, take=100, both=100, fault="", count=contest.cell.count)

    monkeypatch.setattr(run, "CATALOGUE", {name: peer(name) for name in OPTIONS.peers})
    monkeypatch.setattr(Contest, "run", one)
    return said


def report(seconds: float = 20, **others: object) -> run.Report:
    options = copy.copy(OPTIONS)
    vars(options).update(others)
    return run.Report(options, Schedule(Plan(lines=3, runs=options.runs, seconds=seconds), lambda: 0.0))


def test_each_runs_once_before_one_runs_again(happened: list[str]) -> None:
    report().measure(EVERYSEC, 256, 1)
    begun = [word for name in OPTIONS.peers for word in (f"{name} begins", f"{name} 10")]
    assert happened[:6] == begun
    assert happened[6:12] == [f"{name} 100" for name in OPTIONS.peers] * 2
    assert sorted(happened[12:]) == sorted(f"{name} ends" for name in OPTIONS.peers)


def test_one_that_fails_is_told_with_its_reason_and_the_others_are_measured(
    happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    well = Contest.run

    def one(contest: Contest) -> Run:
        if contest.peer.driver == "slow" and contest.cell.count == 100:
            raise AssertionError("a consumer has ended")
        return well(contest)

    monkeypatch.setattr(Contest, "run", one)
    told = report()
    told.measure(EVERYSEC, 256, 1)
    assert happened[6:] == [
        "Headway, streams 100",
        "slow ends",
        "fast 100",
        "Headway, streams 100",
        "fast 100",
        "fast ends",
        "Headway, streams ends",
    ]
    assert told.missing.rows == [("slow", "failed: a consumer has ended (everysec, 256 B, 1 client)")]
    assert [row[0] for row in told.tables[0].rows] == OPTIONS.peers
    assert told.tables[0].rows[1][-1] == "not measured"


def test_one_that_is_not_installed_is_not_begun(happened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def version(peer: Peer) -> str:
        if peer.driver == "slow":
            raise Missing("there is no slow here")
        return ""

    monkeypatch.setattr(run, "library_version", version)
    told = report()
    told.measure(EVERYSEC, 256, 1)
    assert not any(word.startswith("slow") for word in happened)
    assert told.missing.rows == [("slow", "there is no slow here (everysec, 256 B, 1 client)")]


def test_what_it_cannot_use_is_left_to_the_others(happened: list[str]) -> None:
    schedule = Schedule(Plan(lines=1, runs=2, seconds=20, minutes=1), lambda: 0.0)
    line = run.Line(run.Entry("slow", 20), EVERYSEC, Cell(100, 256, 1, 20.0), OPTIONS, schedule)

    def fail() -> None:
        raise OSError

    line.attempt(line.begin)
    line.attempt(line.go)
    line.attempt(fail)
    line.attempt(line.go)
    assert line.runs == []
    assert happened == ["slow begins", "slow 10", "slow 100", "slow ends"]
    assert schedule.begin_run(0.0) == 20.0  # all that there is


def ran(happened: list[str]) -> int:
    """How many runs there were behind warm-ups."""
    return sum(word.endswith(" 100") for word in happened)


def test_rounds_that_are_kept_are_not_run_again(happened: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    report(keep=kept, runs=2).measure(EVERYSEC, 256, 1)
    assert ran(happened) == 6
    told = report(keep=kept, runs=5)
    told.measure(EVERYSEC, 256, 1)
    assert ran(happened) == 15
    assert [row[-1] for row in told.tables[0].rows] == ["in 5 of 5 runs"] * 3
    report(keep=kept, runs=5).measure(EVERYSEC, 256, 1)
    assert ran(happened) == 15


@pytest.mark.parametrize(
    "others",
    [
        {"messages": 90},
        {"batch": 5},
        {"unconfirmed": [10]},
        {"warm_up": 20},
        {"seconds": 30},
        {"peers": ["Headway, streams", "slow"]},
    ],
    ids=lambda others: next(iter(others)),
)
def test_rounds_that_were_measured_otherwise_do_not_count(
    happened: list[str], tmp_path: Path, others: dict[str, Any]
) -> None:
    kept = tmp_path / "kept"
    report(keep=kept).measure(EVERYSEC, 256, 1)
    happened.clear()
    told = report(keep=kept, **others)
    told.measure(EVERYSEC, 256, 1)
    begins_runs_and_ends = 1 + (1 + OPTIONS.runs) + 1
    assert len(happened) == begins_runs_and_ends * len(told.tables[0].rows)


def test_rounds_of_other_tables_settings_versions_or_processors_do_not_count(
    happened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    report(keep=kept).measure(EVERYSEC, 256, 1)
    report(keep=kept).measure(EVERYSEC, 1024, 1)
    assert ran(happened) == 12
    monkeypatch.setattr(run, "processor", lambda: "another")
    report(keep=kept).measure(EVERYSEC, 256, 1)
    assert ran(happened) == 18
    monkeypatch.setattr(run, "library_version", lambda _peer: "2.0")
    report(keep=kept).measure(EVERYSEC, 256, 1)
    assert ran(happened) == 24
    monkeypatch.setenv("BENCH_SETTINGS", "HEADWAY_ACCEPTORS=1")
    report(keep=kept).measure(EVERYSEC, 256, 1)
    assert ran(happened) == 30


def test_a_round_in_which_one_failed_is_not_kept(
    happened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = Contest.run

    def one(contest: Contest) -> Run:
        if contest.peer.driver == "fast" and ran(happened) == 5:
            raise AssertionError("a consumer has ended")
        return well(contest)

    monkeypatch.setattr(Contest, "run", one)
    report(keep=tmp_path / "kept").measure(EVERYSEC, 256, 1)
    assert len((tmp_path / "kept").read_text().splitlines()) == 1


def test_a_table_says_if_its_rounds_are_of_several_days(
    happened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = iter(["2026-11-28", "2026-12-02"])
    monkeypatch.setattr(run, "today", lambda: next(days))
    told = report(keep=tmp_path / "kept")
    told.measure(EVERYSEC, 256, 1)
    assert told.tables[0].note.endswith("of 2 runs. They were made from 2026-11-28 to 2026-12-02.")
