"""The exact-delivery check of the benchmark beside peers: what it lets pass, and what it names."""

from pathlib import Path

import pytest

from bench.peers.tally import Tally, number_of, payload
from unit.bench.tasks import task

COUNT = 250


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally.made(tmp_path / "tally", COUNT)


def test_each_message_exactly_once_is_no_fault(tally: Tally) -> None:
    tally.mark(range(COUNT - 1))
    assert not tally.is_complete
    assert tally.done == COUNT - 1
    tally.mark([COUNT - 1])
    assert tally.is_complete
    assert tally.fault() == ""


def test_a_missing_message_is_named(tally: Tally) -> None:
    tally.mark(range(1, COUNT))
    assert not tally.is_complete
    assert tally.fault() == "1 missing"


def test_a_message_that_came_twice_is_named(tally: Tally) -> None:
    tally.mark(range(COUNT))
    tally.mark([7])
    assert tally.is_complete
    assert tally.fault() == "1 more than once"


def test_a_message_that_came_very_often_is_not_counted_as_missing(tally: Tally) -> None:
    tally.mark(range(COUNT))
    tally.mark([7] * 300)
    assert tally.fault() == "1 more than once"


def test_several_processes_count_in_one_file(tally: Tally, tmp_path: Path) -> None:
    Tally(tmp_path / "tally", COUNT).mark(range(0, COUNT, 2))
    tally.mark(range(1, COUNT, 2))
    assert tally.fault() == ""


@pytest.mark.parametrize("size", [10, 256, 1_024])
def test_a_payload_has_its_size_and_its_number(size: int) -> None:
    assert len(payload(123_456, size)) == size
    assert number_of(payload(123_456, size)) == 123_456


@pytest.mark.parametrize("clients", [1, 3, 50])
def test_the_shares_of_all_clients_are_all_messages_once(clients: int) -> None:
    one = task(count=COUNT, clients=clients)
    shares = [one.batches(client) for client in range(clients)]
    numbers = [number_of(body) for share in shares for batch in share for body in batch]
    assert sorted(numbers) == list(range(COUNT))
