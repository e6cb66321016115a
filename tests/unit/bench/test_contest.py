"""A run of one peer: what its driver processes are let do, and what is noticed of them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.peers.catalogue import CATALOGUE, Peer
from bench.peers.contest import PUT, TAKE, Cell, Contest
from bench.peers.driving import Task
from bench.peers.tally import Tally

PEER = CATALOGUE["Headway, streams"]
COUNT = 100
CELL = Cell(count=COUNT, size=64, clients=1, patience_s=30)  # longer than anything here takes
# Drivers that need no server.
BEGINS = """
import json, os, pathlib, signal, sys, time
task = json.loads(sys.argv[1])
told = pathlib.Path(task["tally"] + ".producer")
print("ready", flush=True)
pathlib.Path(task["fifo"]).read_bytes()
"""
WAITS = "signal.pause()"
ENDS = "sys.exit('there is no room')"
IS_DONE_AND_ENDS = "told.write_text(str(os.getpid())); print('done', flush=True)"
# The process is there, as one that has ended, until the one who started it has noticed.
CONSUMES_WHEN_THE_PRODUCER_HAS_ENDED = """
while not (told.exists() and told.read_text()):
    time.sleep(0.001)
try:
    while True:
        os.kill(int(told.read_text()), 0)
        time.sleep(0.001)
except ProcessLookupError:
    pathlib.Path(task["tally"]).open("r+b").write(bytes([1]) * task["count"])
signal.pause()
"""


def contest(folder: Path, monkeypatch: pytest.MonkeyPatch, *, producer: str, consumer: str) -> Contest:
    """Of drivers that do this."""

    def command_of(_peer: Peer, task: Task) -> list[str]:
        does = BEGINS + {PUT: producer, TAKE: consumer}[task.role]
        return [sys.executable, "-c", does, json.dumps(asdict(task))]

    monkeypatch.setattr("bench.peers.contest.command_of", command_of)
    return Contest(PEER, CELL, "nowhere", folder)


def test_a_producer_that_fails_while_consumers_wait_fails_the_run_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match=r"said '' in place of 'done'(?s:.*)there is no room"):
        contest(tmp_path, monkeypatch, producer=ENDS, consumer=WAITS).at_once()


def test_a_producer_may_end_when_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = {"producer": IS_DONE_AND_ENDS, "consumer": CONSUMES_WHEN_THE_PRODUCER_HAS_ENDED}
    rate, fault = contest(tmp_path, monkeypatch, **drivers).at_once()
    assert rate > 0
    assert fault == ""


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What drivers are let do that are done with all as soon as they have begun."""
    said: list[str] = []

    class Driver:
        is_alive = True

        def __init__(self, _peer: Peer, task: Task, _log: Path) -> None:
            self._task, self._name = task, f"{task.role} {task.first}"

        def wait_ready(self) -> None:
            said.append(f"{self._name} is ready")

        def begin(self) -> None:
            said.append(f"{self._name} begins")
            if self._task.role == TAKE:
                Tally(Path(self._task.tally), COUNT).mark(range(COUNT))

        def expect(self, _word: str, _within: float) -> bool:
            return True

        def close(self) -> None:
            pass

    monkeypatch.setattr("bench.peers.contest.Process", Driver)
    return said


def of_two(clients: int) -> int:
    """Processes for four clients."""
    return clients // 2


def run(peer: Peer, folder: Path) -> None:
    """With four clients."""
    Contest(peer, replace(CELL, clients=4), "nowhere", folder).run()


def test_no_process_begins_before_all_are_ready(happened: list[str], tmp_path: Path) -> None:
    run(replace(PEER, consumers=of_two), tmp_path)
    put, take = (
        ["put 0 is ready", "put 0 begins"],
        ["take 0 is ready", "take 2 is ready", "take 0 begins", "take 2 begins"],
    )
    assert happened == [*put, *take, *take, *put]


def test_producers_may_be_several_processes_as_consumers_may(happened: list[str], tmp_path: Path) -> None:
    run(replace(PEER, producers=of_two), tmp_path)
    put, take = (
        ["put 0 is ready", "put 2 is ready", "put 0 begins", "put 2 begins"],
        ["take 0 is ready", "take 0 begins"],
    )
    assert happened == [*put, *take, *take, *put]
