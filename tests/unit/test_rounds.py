"""Rounds: who sleeps too long to be left to hints is checked, and looks when that may find something, or rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from harness.clocks import run
from headwayd.engine import rounds
from headwayd.engine.rounds import CHECK_S, Rounds
from headwayd.engine.tasks import Tasks

NOW = 1_000.0


class Sleeper:
    """Sleeps since then."""

    def __init__(self, quiet_since: float | None) -> None:
        self.quiet_since = quiet_since
        self.checks = 0
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        self.checks = 0


class Store:
    """Tells who is quiet: all but the `loud`."""

    def __init__(self, *loud: str) -> None:
        self.loud = loud
        self.asked: list[list[str]] = []

    async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
        self.asked.append(list(queues))
        return set(queues) - set(self.loud)


def made(sleepers: dict[str, Sleeper], store: Store, *, most: int = 10) -> Rounds:
    return Rounds(sleepers, store.find_quiet, Tasks().spawn, kind="test", most=most)


async def test_who_has_slept_long_is_asked_about_at_once_the_longest_asleep_first() -> None:
    store = Store()
    sleepers = {f"q{n}": Sleeper(NOW - CHECK_S - n) for n in range(5)}
    sleepers |= {"awake": Sleeper(None), "fresh": Sleeper(NOW - CHECK_S + 0.5)}
    some = made(sleepers, store, most=3)
    for later in (0.0, 1.0, 2.0):
        await some.check(NOW + later)
    assert store.asked == [["q4", "q3", "q2"], ["q1", "q0", "fresh"]]
    await some.check(NOW + CHECK_S)
    assert store.asked[2:] == [["q2", "q3", "q4"]]
    assert not any(sleeper.looks for sleeper in sleepers.values())


async def test_who_is_not_known_to_be_quiet_looks() -> None:
    sleepers = {"quiet": Sleeper(0.0), "loud": Sleeper(0.0)}
    await made(sleepers, Store("loud")).check(NOW)
    assert {queue: sleeper.looks for queue, sleeper in sleepers.items()} == {"quiet": 0, "loud": 1}


async def test_without_a_question_to_ask_everybody_looks_but_not_all_at_once() -> None:
    sleepers = {f"q{n}": Sleeper(0.0) for n in range(20)}
    some = Rounds(sleepers, rounds.none_quiet, lambda _work, _name: None, kind="test", most=rounds.LOOKS_A_ROUND)
    for looked in (5, 10, 15, 20, 20):
        await some.check(NOW)
        assert sum(sleeper.looks for sleeper in sleepers.values()) == looked


async def test_who_was_woken_while_the_store_was_asked_is_left_alone() -> None:
    sleepers = {"hinted": Sleeper(0.0), "slept_again": Sleeper(0.0), "gone": Sleeper(0.0), "asleep": Sleeper(0.0)}
    gone = sleepers["gone"]

    class SlowStore(Store):
        async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
            sleepers["hinted"].quiet_since = None
            sleepers["slept_again"].quiet_since = NOW
            del sleepers["gone"]
            return ()

    await made(sleepers, SlowStore()).check(NOW)
    assert {queue: sleeper.looks for queue, sleeper in sleepers.items()} == {"hinted": 0, "slept_again": 0, "asleep": 1}
    assert gone.looks == 0
    assert sleepers["hinted"].quiet_since is None


async def test_everybody_looks_now_and_then_though_thought_to_be_quiet_one_in_six_seconds() -> None:
    sleepers = {f"q{n}": Sleeper(0.0) for n in range(3)}
    some = made(sleepers, Store())
    looks = {}
    for second in range(100):
        await some.check(NOW + second)
        looks[second] = sum(sleeper.looks for sleeper in sleepers.values())
    assert looks[54] == 0  # eleven checks
    assert (looks[55], looks[60], looks[65], looks[75]) == (1, 1, 2, 3)  # each is checked every five seconds
    assert looks[99] == 3


@pytest.fixture
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sleeps is checked in each."""
    monkeypatch.setattr(rounds, "CHECK_S", 0.0)


@pytest.mark.usefixtures("every_round")
def test_rounds_are_made_for_as_long_as_there_is_somebody() -> None:
    async def scene() -> list[int]:
        store, sleepers = Store(), {"q": Sleeper(0.0)}
        some, asked = made(sleepers, store), list[int]()
        some.plan()
        some.plan()
        await asyncio.sleep(20.5)
        asked.append(len(store.asked))
        sleepers.clear()
        await asyncio.sleep(5)
        asked.append(len(store.asked))
        sleepers["q"] = Sleeper(0.0)
        some.plan()
        await asyncio.sleep(2.5)
        return [*asked, len(store.asked)]

    assert run(scene) == [20, 20, 22]


@pytest.mark.usefixtures("every_round")
def test_a_round_that_failed_is_not_the_last() -> None:
    class BrokenStore(Store):
        async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
            self.asked.append(list(queues))
            raise RuntimeError("asked for")

    async def scene() -> int:
        store = BrokenStore()
        made({"q": Sleeper(0.0)}, store).plan()
        await asyncio.sleep(3.5)
        return len(store.asked)

    assert run(scene) == 3
