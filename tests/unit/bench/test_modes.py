"""A peer may take part in several modes, and is compared in the best of them."""

import re
from argparse import Namespace

import pytest

from bench.peers.catalogue import CATALOGUE, GO
from bench.peers.contest import Run
from bench.peers.places import HERE
from bench.peers.ratios import OURS, Mode, is_by_go, ratio_row
from bench.peers.run import Entry, entries_of
from bench.peers.servers import ALWAYS, EVERYSEC

PEERS = ["Headway, calls", "Headway, Go", "RabbitMQ, quorum"]


def options(*unconfirmed: int) -> Namespace:
    return Namespace(peers=PEERS, unconfirmed=list(unconfirmed), processes=[0])


def test_each_number_of_unconfirmed_messages_makes_a_line_of_those_that_have_such() -> None:
    asked = options(1_000, 4_000)
    calls, few, many = entries = entries_of(asked, EVERYSEC)
    assert entries == [Entry("Headway, calls", 1_000), Entry("Headway, Go", 1_000), Entry("Headway, Go", 4_000)]
    assert [one.told(asked) for one in entries] == [
        "Headway, calls",
        "Headway, Go, 1,000 unconfirmed",
        "Headway, Go, 4,000 unconfirmed",
    ]
    assert "40 put ahead of answers; credit for 4,000" in many.mode(100)
    assert calls.mode(100) == "Put of 100; Get of 100 with the acks of the last"
    assert few.told(options(1_000)) == "Headway, Go"
    assert entries_of(asked, ALWAYS)[-1] == Entry("RabbitMQ, quorum", 4_000)


def test_each_number_of_processes_makes_a_line_of_those_that_have_workers() -> None:
    asked = Namespace(peers=["Headway, calls", "arq"], unconfirmed=[1_000], processes=[0, 1, 4])
    ours, best, one, four = entries_of(asked, EVERYSEC)
    assert [entry.told(asked) for entry in (ours, best, one, four)] == [
        "Headway, calls",
        "arq",
        "arq, 1 process",
        "arq, 4 processes",
    ]
    assert [entry.mode(100).split("; ")[1] for entry in (best, four)] == [
        "one worker process, at least 100 jobs at a time",
        "4 worker processes, at least 100 jobs at a time",
    ]
    assert best.chosen() is CATALOGUE["arq"]
    assert [entry.chosen().consumers(clients) for entry in (one, four) for clients in (1, 50)] == [1, 1, 1, 4]


def test_frameworks_have_a_worker_for_each_core_where_that_suits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert [CATALOGUE[name].consumers(50) for name in ("SAQ", "Dramatiq", "Celery", "arq", "BullMQ", "RQ")] == [
        *[2, 2, 2],
        *[1, 1],
        4,
    ]
    assert {CATALOGUE[name].consumers(1) for name in CATALOGUE} == {1}


def test_those_that_put_by_threads_do_so_in_a_process_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    threaded = {name for name in CATALOGUE if CATALOGUE[name].producers(50) == 2}
    assert threaded == {"Dramatiq", "Celery", "RQ"}
    assert {CATALOGUE[name].producers(1) for name in CATALOGUE} == {1}
    assert {name for name in CATALOGUE if "by threads of a process for each core" in CATALOGUE[name].mode} == threaded


def test_the_mode_of_bullmq_tells_how_many_jobs_its_driver_takes() -> None:
    code = (HERE / "drivers" / CATALOGUE["BullMQ"].driver).read_text()
    numbers = dict(re.findall(r"^const (JOBS|MIN_JOBS) = (\d+);", code, re.MULTILINE))
    told = "{JOBS} jobs at a time, or {MIN_JOBS} for each client if that is more".format_map(numbers)
    assert told in CATALOGUE["BullMQ"].mode


def test_headways_own_modes_are_known_as_such() -> None:
    assert tuple(name for name in CATALOGUE if name.startswith("Headway")) == OURS


def mode(peer: str, name: str, put: float, fault: str = "") -> Mode:
    return Mode(peer, name, [Run(put=put, take=10.0, both=10.0, fault=fault, count=1)])


def test_the_best_mode_of_headway_is_compared_with_the_best_of_the_others() -> None:
    modes = [
        mode("Headway, calls", "few", 20.0),
        mode("Headway, calls", "many", 30.0),
        mode("beanstalkd", "slow", 10.0),
        mode("beanstalkd", "fast", 12.0),
        mode("beanstalkd", "wrong", 99.0, fault="1 missing"),
        mode("Redis list", "floor", 99.0),
        mode("NSQ, Go", "forgetful", 99.0),
        Mode("beanstalkd", "not measured", []),
    ]
    assert ratio_row("table", modes) == ["table", "2.50 × fast", "1.00 × slow", "1.00 × slow"]


def test_headway_by_go_is_compared_with_what_is_by_go() -> None:
    ours = [mode("Headway, calls", "calls", 20.0), mode("Headway, Go", "Go", 40.0)]
    by_go, by_python = mode("beanstalkd, Go", "quick", 16.0), mode("beanstalkd", "slow", 8.0)
    rows = [ratio_row("table", modes) for modes in ([*ours, by_go, by_python], [*ours, by_python], [ours[0], by_go])]
    assert [row[1] for row in rows if row] == ["2.50 × quick", "2.50 × slow", "– × quick"]


def test_names_tell_who_is_driven_by_go() -> None:
    assert {name for name in CATALOGUE if is_by_go(name)} == {
        name for name, peer in CATALOGUE.items() if peer.environment == GO
    }


@pytest.mark.parametrize("peer", ["Headway, Go", "beanstalkd"])
def test_there_is_nothing_to_compare_with_one_side_only(peer: str) -> None:
    assert ratio_row("table", [mode(peer, "alone", 1.0)]) is None
