"""What one Consume stream has leased, against its credit."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headwayd.domain.columns import FirstDeliveries
from headwayd.domain.consuming import Credit
from headwayd.domain.leases import LeaseRuns, all_leases
from headwayd.domain.model import Delivery
from headwayd.engine.consuming.outstanding import Outstanding, Room, size_of
from unit.runs import first_deliveries


def delivery(lease: str, size: int = 10, *, id_: str = "~g-1", headers: bytes = b"") -> Delivery:
    return Delivery(
        id=id_,
        payload=b"x" * size,
        headers=headers,
        lease=lease,
        lease_expires_at_ms=0,
        attempt=1,
        ticket=1,
        put_at_ms=None,
        waited_ms=None,
    )


def holding(credit: Credit, *leases: str, size: int = 10, lapses_at: float = 100.0) -> Outstanding:
    held = Outstanding(credit)
    held.add([delivery(lease, size) for lease in leases], lapses_at)
    return held


def test_a_size_is_payload_headers_and_an_id_that_was_given() -> None:
    assert size_of(delivery("a", 7)) == 7
    assert size_of(delivery("a", 7, id_="né", headers=b"1234")) == 14


@pytest.mark.parametrize(
    ("credit", "held", "room"),
    [
        (Credit(0, 0), 0, None),
        (Credit(0, 5), 0, None),
        (Credit(1, 0), 0, Room(1, 0, is_strict=False)),
        (Credit(1, 0), 1, None),
        (Credit(2, 0), 1, Room(1, 0, is_strict=False)),
        (Credit(1, 0), 3, None),
        (Credit(9, 5), 0, Room(9, 5, is_strict=False)),  # one message always fits
        (Credit(9, 5), 1, None),
        (Credit(9, 10), 1, None),
        (Credit(9, 11), 1, Room(8, 1, is_strict=True)),
        (Credit(9, 25), 2, Room(7, 5, is_strict=True)),
    ],
)
def test_the_room_is_what_the_credit_leaves(credit: Credit, held: int, room: Room | None) -> None:
    assert holding(credit, *map(str, range(held))).room() == room


def test_leases_that_are_to_be_settled_leave_room_already() -> None:
    held = holding(Credit(2, 25), "a", "b")
    assert held.room() is None
    assert held.room(["a", "a", "unknown"]) == Room(1, 15, is_strict=True)
    assert held.room(["a", "b"]) == Room(2, 25, is_strict=False)
    assert held.room() is None


def test_what_is_settled_frees_its_room_once() -> None:
    held = holding(Credit(2, 20), "a", "b")
    before = held.freed
    held.end("a")
    held.end("a")
    held.end("unknown")
    assert held.freed == before + 1
    assert held.room() == Room(1, 10, is_strict=True)
    assert held.leases == ["b"]


def test_a_lease_that_lapses_frees_its_room_at_its_time_and_not_before() -> None:
    held = holding(Credit(1), "a", lapses_at=100.0)
    assert held.lapses_at == 100.0
    held.lapse(99.999)
    assert held.room() is None
    held.lapse(100.0)
    assert held.room() == Room(1, 0, is_strict=False)
    assert held.leases == []


def test_a_lease_that_was_extended_lapses_later_or_earlier() -> None:
    held = holding(Credit(2), "a", "b", lapses_at=100.0)
    held.extend("a", 200.0)
    held.extend("b", 50.0)
    held.lapse(50.0)
    assert held.leases == ["a"]
    held.lapse(199.0)
    assert held.leases == ["a"]
    held.lapse(200.0)
    assert held.leases == []


def test_a_lease_that_was_extended_often_lapses_when_the_last_extension_says() -> None:
    held = holding(Credit(9), "a", "b", lapses_at=10.0)
    for at in (20.0, 5.0):
        held.extend("a", at)
    held.lapse(5.0)
    assert held.leases == ["b"]
    held.extend("a", 100.0)  # taken up again: what was said of it before does not count
    held.lapse(20.0)
    assert held.leases == ["a"]
    held.add([delivery("a", 10)], 120.0)  # told again, because the first answer was lost
    held.lapse(119.0)
    assert held.leases == ["a"]
    held.lapse(120.0)
    assert held.leases == []
    assert held.room() == Room(9, 0, is_strict=False)


def test_extensions_of_one_lease_leave_nothing_behind() -> None:
    held = holding(Credit(9), "a", "b", lapses_at=1e6)
    for number in range(10_000):
        held.extend("a", 100.0 + number // 100)
    assert sum(len(leases) for _, _, leases in held._lapses) < 500
    held.end("a")
    assert held.lapses_at <= 1e6
    held.lapse(1e5)
    assert held.leases == ["b"]


def test_a_lapsed_lease_that_is_taken_up_again_counts_again_with_its_bytes() -> None:
    held = holding(Credit(5, 12), "a", lapses_at=100.0)
    held.lapse(100.0)
    held.extend("a", 200.0)
    assert held.room() == Room(4, 2, is_strict=True)
    held.lapse(200.0)
    assert held.leases == []


def test_a_lease_of_somebody_else_never_counts() -> None:
    held = holding(Credit(1))
    held.extend("other", 200.0)
    assert held.leases == []
    assert held.room() == Room(1, 0, is_strict=False)


def test_what_lapsed_long_ago_is_forgotten() -> None:
    held = Outstanding(Credit(1))
    for number in range(20_001):
        assert held.has_forgotten == (number > 10_000)  # so its owner knows that it cannot name all
        held.add([delivery(str(number))], float(number))
        held.lapse(float(number))
    assert held.lapsed == [str(number) for number in range(10_001, 20_001)]
    held.extend("0", 1e9)
    assert held.leases == []
    held.extend("20000", 1e9)
    assert held.leases == ["20000"]


class Lease(str):
    """That tells how long it is kept."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("settles_at_once", [True, False])
def test_of_a_stream_that_always_holds_something_nothing_is_kept_that_is_settled(*, settles_at_once: bool) -> None:
    held = Outstanding(Credit(100, 0))
    known: list[weakref.ref[Lease]] = []
    for number in range(300):
        leases = [Lease(f"{number}-{n}") for n in range(50)]
        known += map(weakref.ref, leases)
        held.add([delivery(lease) for lease in leases], lapses_at=100.0 + number)
        if number:
            before = [f"{number - 1}-{n}" for n in range(50)]
            for part in [before] if settles_at_once else [[lease] for lease in before]:
                held.end_all(part)
    del leases
    assert sum(lease() is not None for lease in known) < 1_000  # of 15,000
    assert len(held) == 50
    assert held.lapses_at <= 399.0
    held.lapse(398.9)
    assert len(held) == 50
    held.lapse(399.0)
    assert len(held) == 0


def step(number: int, first: int, count: int) -> FirstDeliveries:
    """What one step leased, of 0 to 4 bytes each."""
    tickets = range(first, first + count)
    return first_deliveries(number, tickets, payloads=[b"x" * (ticket % 5) for ticket in tickets])


def holding_a_run() -> tuple[Outstanding, LeaseRuns]:
    """Twelve leases of 0 to 4 bytes each."""
    held, run = Outstanding(Credit(20, 100)), step(0, 0, 12)
    held.add(run, 100.0)
    return held, run.leases


def test_from_the_middle_of_a_run_only_that_is_settled() -> None:
    held, leases = holding_a_run()
    held.end_all(leases[3:5])
    assert held.leases == [*leases[:3], *leases[5:]]
    assert held.room() == Room(10, 86, is_strict=True)


def test_leases_of_a_run_that_are_settled_twice_free_their_room_once() -> None:
    held, leases = holding_a_run()
    twice = all_leases([leases[:3], leases[:3]])
    assert held.room(leases[:3]) == held.room(twice) == Room(11, 82, is_strict=True)
    held.end_all(twice)
    assert held.leases == list(leases[3:])
    held.end_all(leases)
    assert (len(held), held.leases, held.lapses_at) == (0, [], float("inf"))


def test_one_lease_of_a_run_that_is_extended_outlives_the_others() -> None:
    held, leases = holding_a_run()
    held.extend(leases[4], 200.0)
    held.lapse(100.0)
    assert held.leases == [leases[4]]
    held.lapse(200.0)
    assert held.leases == []


def test_a_run_that_is_told_again_takes_its_room_once() -> None:
    held, leases = holding_a_run()
    held.add(step(0, 0, 12), 200.0)
    assert (held.leases, len(held)) == (list(leases), 12)
    assert held.room() == Room(8, 79, is_strict=True)


def test_one_that_is_told_again_behind_its_lapse_is_over_once_it_is_settled() -> None:
    held, leases = holding_a_run()
    held.lapse(100.0)
    held.add(step(0, 0, 12), 200.0)
    assert held.lapsed == []
    held.end_all(leases)
    held.extend(leases[0], 300.0)
    assert (held.leases, held.taken_up_count) == ([], 0)


BIASED = st.sampled_from([True, True, True, False])


class RunsAndLeases(RuleBasedStateMachine):
    """However leases come and go, kept as runs they count as they do one by one."""

    @initialize(most_bytes=st.sampled_from([0, 30, 1_000]))
    def begin(self, most_bytes: int) -> None:
        credit = Credit(60, most_bytes)
        self.as_runs, self.one_by_one = Outstanding(credit), Outstanding(credit)
        self.steps: list[FirstDeliveries] = []
        self.now = 0.0

    def part(self, at: int, start: int, count: int) -> LeaseRuns:
        leases = self.steps[at % len(self.steps)].leases
        start %= len(leases)
        return leases[start : start + count]

    @rule(count=st.integers(1, 20), lasts=st.integers(1, 9), is_alike=BIASED)
    def lease(self, count: int, lasts: int, is_alike: bool) -> None:
        tickets = sum(map(len, self.steps))
        new = step(len(self.steps), tickets, count)
        self.steps.append(new)
        self.as_runs.add(new if is_alike else list(new), self.now + lasts)
        self.one_by_one.add(list(new), self.now + lasts)

    @rule(at=st.integers(0), lasts=st.integers(1, 9), is_alike=st.booleans())
    def tell_again(self, at: int, lasts: int, is_alike: bool) -> None:
        if self.steps:
            again = self.steps[at % len(self.steps)]
            self.as_runs.add(again if is_alike else list(again), self.now + lasts)
            self.one_by_one.add(list(again), self.now + lasts)

    @rule(
        parts=st.lists(st.tuples(st.integers(0), st.sampled_from([0, 0, 0, 3]), st.integers(1, 20)), max_size=3),
        is_read=BIASED.map(lambda is_usual: not is_usual),
        settles=BIASED,
    )
    def ack(self, parts: list[tuple[int, int, int]], is_read: bool, settles: bool) -> None:
        if not self.steps:
            return
        leases: Sequence[str] = all_leases([self.part(*part) for part in parts])
        if is_read:
            leases = [*leases, "unknown"]
        assert self.as_runs.room(leases) == self.one_by_one.room(list(leases))
        if settles:
            self.as_runs.end_all(leases)
            for lease in leases:
                self.one_by_one.end(lease)

    @rule(at=st.integers(0), start=st.integers(0), lasts=st.integers(1, 9), is_extended=st.booleans())
    def one(self, at: int, start: int, lasts: int, is_extended: bool) -> None:
        if self.steps:
            [lease] = self.part(at, start, 1)
            for held in (self.as_runs, self.one_by_one):
                if is_extended:
                    held.extend(lease, self.now + lasts)
                else:
                    held.end(lease)

    @rule(passes=st.integers(1, 4))
    def lapse(self, passes: int) -> None:
        self.now += passes
        for held in (self.as_runs, self.one_by_one):
            held.lapse(self.now)

    @invariant()
    def are_alike(self) -> None:
        if hasattr(self, "steps"):
            assert set(self.as_runs.leases) == set(self.one_by_one.leases)
            assert len(self.as_runs) == len(self.as_runs.leases) == len(self.one_by_one)
            assert self.as_runs.room() == self.one_by_one.room()


def test_whatever_befalls_leases_of_runs_they_count_as_any() -> None:
    run_state_machine_as_test(RunsAndLeases, settings=settings(max_examples=300, stateful_step_count=25))
