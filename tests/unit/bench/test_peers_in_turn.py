"""The peers of a table run in turn, and one that cannot be measured keeps nobody else from it."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def report() -> run.Report:
    return run.Report(OPTIONS, Schedule(Plan(lines=3, runs=2, seconds=20), lambda: 0.0))


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
