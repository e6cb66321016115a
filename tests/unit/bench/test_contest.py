"""A run of one peer: what its driver processes are let do, and what is noticed of them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.peers.catalogue import CATALOGUE, Peer
from bench.peers.contest import PUT, TAKE, Cell, Contest
from bench.peers.driving import Task

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
