"""Counting: which queues have numbers of their own, what a step counts, and that nothing is there when nobody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from headwayd.config.settings import Settings
from headwayd.domain.bare import BareMessages
from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.domain.errors import NotDurable, QueueFull, RoleInUse, StoreUnavailable
from headwayd.domain.histograms import Histogram
from headwayd.domain.limits import Limits
from headwayd.domain.model import Counts as QueueTotals
from headwayd.domain.model import Delivery, GetOrder, Policy, PutOrder, Queue, Role, Settled, Settlement
from headwayd.domain.places import LineNumbers
from headwayd.engine.counting import census, counted_store
from headwayd.engine.counting.census import Census, QueueNumbers
from headwayd.engine.counting.counted_store import CALL_GONE, STREAM_ENDED, counted
from headwayd.engine.counting.counts import OTHERS, Counts
from headwayd.engine.engine import Engine
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.ports import GetStep, PutStep, Store, Wait
from headwayd.oversight import Oversight
from headwayd.telemetry.metric_names import QUEUES
from headwayd.telemetry.reading import of_census
from unit.runs import first_deliveries


def test_a_value_at_a_bound_is_counted_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.note(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == pytest.approx(6.6)


def test_the_first_queues_have_numbers_of_their_own_and_the_rest_share_one_set() -> None:
    counts = Counts(most_queues=2)
    for name in ("a", "b", "c", "d", "a", "c"):
        counts.of(name).put += 1
    assert {name: one.put for name, one in counts.own.items()} == {"a": 2, "b": 1}
    assert counts.others.put == 3
    counts.forget("a")
    counts.of("d").put += 1
    assert {name: one.put for name, one in counts.own.items()} == {"b": 1, "d": 1}


def test_a_queue_called_like_the_rest_is_one_of_the_rest() -> None:
    counts = Counts(most_queues=2)
    assert counts.of(OTHERS) is counts.others
    assert OTHERS not in counts.own


def test_a_name_that_may_be_none_takes_no_place() -> None:
    counts = Counts(most_queues=2)
    assert counts.of_known("made-up") is counts.others
    assert counts.own == {}


@pytest.mark.parametrize("asked", [{"http_listen": "127.0.0.1:0"}, {"otlp_endpoint": "http://127.0.0.1:4317"}])
def test_nothing_is_counted_unless_somebody_will_ask(asked: dict[str, str]) -> None:
    def oversight(**settings: str) -> Oversight:
        return Oversight(Settings.load(settings), process="p", is_worker=False, shared=None)

    assert oversight().counts is None
    assert oversight(**asked).counts is not None


class FakeStore:
    """Answers what it was given."""

    def __init__(self) -> None:
        self.step = GetStep(deliveries=(), settled=())
        self.settled: Sequence[Settlement] = ()
        self.facts = "facts"

    async def get(self, order: GetOrder, **_: object) -> GetStep:
        return self.step

    async def ack(self, *_: object, **__: object) -> Sequence[Settlement]:
        return self.settled

    async def release(self, *_: object, **__: object) -> Sequence[Settlement]:
        return self.settled


def delivery(lease: str, *, attempt: int = 1, waited_ms: int | None = 20) -> Delivery:
    return Delivery("id", b"", b"", lease, 0, attempt, 1, 0, waited_ms)


async def counted_fake() -> tuple[FakeStore, Store, Counts]:
    fake, counts = FakeStore(), Counts(most_queues=5)
    return fake, counted(cast(Store, fake), counts), counts


class FullStore:
    """Has room for no message, for that reason. Only what these tests need."""

    quiet_at_once = 1

    def __init__(self, wait: Wait) -> None:
        self._step = PutStep([], wait, bound=1)

    async def find_quiet(self, queues: Sequence[str]) -> Sequence[str]:
        return queues

    async def put(self, *_: object, **__: object) -> PutStep:
        return self._step


@pytest.mark.parametrize(("wait", "reason"), [(Wait.ROOM, "QUEUE_FULL"), (Wait.ROLE, "ROLE_IN_USE")])
async def test_all_that_is_refused_is_counted_but_what_comes_again(wait: Wait, reason: str) -> None:
    """The last try of a stream, too, that has no more time to wait for room."""
    counts = Counts(most_queues=5)
    engine = Engine(cast(Store, FullStore(wait)), process="p", limits=Limits(), counts=counts)
    order = PutOrder("q", BareMessages([b"one", b"two"]))
    await engine.put_each(order, budget_s=1)
    assert counts.of("q").refused == {reason: 2}
    with pytest.raises((QueueFull, RoleInUse)):
        await engine.put(order, budget_s=1)
    assert counts.of("q").refused == {reason: 4}
    await engine.put_each(order._replace(comes_again=True), budget_s=1)
    assert counts.of("q").refused == {reason: 4}


async def test_leases_given_back_are_counted_by_why_and_only_if_they_were() -> None:
    fake, store, counts = await counted_fake()
    fake.settled = [
        Settlement("a", Settled.RELEASED),
        Settlement("b", Settled.STALE),
        Settlement("c", Settled.RELEASED),
    ]
    await store.release("q", ["a", "b", "c"], budget_s=1)
    await store.release("q", ["a", "b", "c"], budget_s=1, owned=True)
    fake.settled = [Settlement("b", Settled.STALE)]
    await store.release("q", ["b"], budget_s=1)
    assert counts.released == {CALL_GONE: 2, STREAM_ENDED: 2}


async def test_the_same_leases_asked_for_again_are_counted_once() -> None:
    fake, store, counts = await counted_fake()
    fake.step = GetStep(deliveries=[delivery("a"), delivery("b", attempt=3), delivery("c", waited_ms=None)], settled=())
    order = GetOrder("q", attempt_id="x")
    await store.get(order, budget_s=1)
    await store.get(order, budget_s=1)
    found = counts.of("q")
    assert (found.delivered, found.redelivered, sum(found.wait.counts)) == (3, 1, 1)


async def test_only_work_that_began_here_and_was_acked_here_has_a_duration() -> None:
    fake, store, counts = await counted_fake()
    fake.step = GetStep(deliveries=[delivery("a"), delivery("b")], settled=())
    await store.get(GetOrder("q"), budget_s=1)
    fake.settled = [
        Settlement("a", Settled.ACKED),
        Settlement("b", Settled.STALE),
        Settlement("elsewhere", Settled.ACKED),
        Settlement("x", Settled.EXTENDED),
    ]
    await store.ack("q", ["a", "b", "elsewhere", "x"], budget_s=1)
    await store.ack("q", ["b"], budget_s=1)
    found = counts.of("q")
    assert found.settled == {"acked": 4, "stale": 2}  # of both calls
    assert sum(found.work.counts) == 1


async def test_leases_of_a_run_are_counted_as_those_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def leased(number: int) -> FirstDeliveries:
        return first_deliveries(number, range(1, 101), put_at_ms=[1_000] * 60 + [0] * 40)

    monkeypatch.setattr(counted_store, "_MOST_LEASES", 250)
    for is_alike in (True, False):
        fake, store, counts = await counted_fake()
        for number in (1, 2, 3, 3):  # the last is asked for again; the first is forgotten
            given = leased(number)
            fake.step = GetStep(deliveries=given if is_alike else list(given), settled=())
            await store.get(GetOrder("q"), budget_s=1)
        found = counts.of("q")
        assert (found.delivered, sum(found.wait.counts)) == (300, 180)
        for number, part in ((1, slice(0, 100)), (2, slice(0, 60)), (2, slice(60, 100)), (3, slice(5, 35))):
            acks = FirstAcks(leased(number).leases[part])
            fake.settled = acks if is_alike else list(acks)
            await store.ack("q", ["any"], budget_s=1)
        fake.settled = [Settlement(lease, Settled.STALE) for lease in leased(3).leases[:5]]
        await store.ack("q", ["any"], budget_s=1)
        fake.settled = [Settlement(lease, Settled.RELEASED) for lease in leased(3).leases[35:]]
        await store.release("q", ["any"], budget_s=1)
        assert (found.settled, sum(found.work.counts)) == ({"acked": 230, "stale": 5}, 130)
        [(_, left)] = cast(Any, store)._leased_at.values()
        assert left == 5


async def test_leases_that_nobody_settles_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_store, "_MOST_LEASES", 3)
    fake, store, _ = await counted_fake()
    for number in range(10):
        fake.step = GetStep(deliveries=[delivery(str(number))], settled=())
        await store.get(GetOrder("q"), budget_s=1)
    assert list(cast(Any, store)._leased_at) == ["7", "8", "9"]


async def test_what_is_not_counted_is_passed_on() -> None:
    _, store, _ = await counted_fake()
    assert cast(Any, store).facts == "facts"


def queue(name: str, *, length: int = 1) -> Queue:
    return Queue(
        name=name,
        policy=Policy(),
        is_closed=False,
        is_paused=False,
        counts=QueueTotals(length=length, oldest_age_ms=1_500),
        created_at_ms=0,
        generation="g",
        producer=Role(),
        consumer=Role(),
    )


class FakeQueues:
    """A store with queues, which counts what it is asked."""

    def __init__(self, *names: str) -> None:
        self.all = set(names)
        self.described: list[str] = []
        self.asked = 0
        self.is_slow = False
        self.is_away = False
        self.keeps_too_little = False

    async def ping(self, *, budget_s: float) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        if self.keeps_too_little:
            raise NotDurable("it keeps nothing")

    async def names(self, namespace: str | None, *, budget_s: float) -> Sequence[str]:
        if self.is_slow or self.is_away:
            raise StoreUnavailable("slow, or away")
        return sorted(self.all)

    async def describe_many(
        self, queues: Sequence[str], *, only_known: bool = False, budget_s: float
    ) -> Sequence[Queue]:
        self.asked += 1
        self.described += queues
        await asyncio.sleep(0)
        return [queue(name) for name in queues if name in self.all]


async def test_many_who_ask_at_the_same_time_cost_one_look() -> None:
    store = FakeQueues("a", "b")
    asked = Census(cast(Store, store), Counts(most_queues=5))
    seen = await asyncio.gather(*(asked.look() for _ in range(50)))
    assert store.asked == 1
    assert all(one is seen[0] for one in seen)
    assert {name: one.waiting for name, one in seen[0].queues.items()} == {"a": 1, "b": 1}
    assert seen[0].queues["a"].oldest_age_s == 1.5


async def test_a_look_at_very_many_queues_is_bounded_and_comes_round_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "FRESH_S", -1.0)
    monkeypatch.setattr(census, "_MOST_OTHERS", 4)
    store = FakeQueues(*(f"q{number:02}" for number in range(13)))
    asked = Census(cast(Store, store), Counts(most_queues=3))
    told = []
    for _ in range(4):
        store.described.clear()
        seen = await asked.look()
        assert len(store.described) == 3 + 4
        told.append(seen.queues.get(OTHERS))
    assert told[:2] == [None, None]  # a part of them would be a sum that rises without anything happening
    assert [one and one.waiting for one in told[2:]] == [10, 10]
    assert seen.queue_count == 13
    store.all -= {"q00", "q12"}
    monkeypatch.setattr(census, "_NAMES_EVERY_S", -1.0)
    for _ in range(4):
        seen = await asked.look()
    assert sum(one.waiting for one in seen.queues.values()) == seen.queue_count == 11


def test_numbers_of_several_queues_are_summed_but_the_age_which_is_the_greatest() -> None:
    first = QueueNumbers(1, 2, 3, 4, 5, 6, 7, 8, 2.5)
    second = QueueNumbers(10, 20, 30, 40, 50, 60, 70, 80, 1.5)
    assert QueueNumbers.together([first, second, QueueNumbers()]) == QueueNumbers(11, 22, 33, 44, 55, 66, 77, 88, 2.5)


async def test_queues_whose_names_the_store_takes_too_long_to_tell_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(census, "FRESH_S", -1.0)
    store = FakeQueues("a", "b")
    counts = Counts(most_queues=5)
    counts.of("a")
    asked = Census(cast(Store, store), counts)
    store.is_slow = True
    seen = await asked.look()
    assert seen.is_reachable
    assert seen.queues.keys() == {"a"}
    assert QUEUES.name not in of_census(seen)
    store.is_slow = False
    assert of_census(await asked.look())[QUEUES.name] == {(): 2}


async def test_a_store_without_queues_is_told_to_be_away_also_while_its_names_are_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(census, "FRESH_S", -1.0)
    store = FakeQueues()
    asked = Census(cast(Store, store), Counts(most_queues=5))
    assert (await asked.look()).is_reachable
    store.is_away = True
    assert not (await asked.look()).is_reachable


async def test_a_store_that_keeps_too_little_answers_whether_or_not_there_are_queues() -> None:
    for names in ((), ("a",)):
        store = FakeQueues(*names)
        store.keeps_too_little = True
        seen = await Census(cast(Store, store), Counts(most_queues=5)).look()
        assert (seen.is_reachable, seen.queue_count) == (True, len(names))


def test_how_true_an_estimate_was_is_told_when_its_wait_is_over() -> None:
    errors: list[float] = []
    estimator = WaitEstimator(note_error=errors.append)
    for number in range(200):
        estimator.observe(numbers(at_ms=number * 1_000, head=number))
    assert len(errors) > 20
    assert 0.5 < sorted(errors)[len(errors) // 2] < 2.0  # a steady line: about what was estimated


def numbers(*, at_ms: int, head: int) -> LineNumbers:
    """A line of 50 with one consumer that takes a message every second."""
    return LineNumbers(
        generation="g",
        at_ms=at_ms,
        logged=0,
        head=head,
        tail=head + 50,
        length=50,
        leased=1,
        limit=0,
        departures=head,
        acked=head,
        consumers_waiting=0,
        producers_waiting=0,
        is_paused=False,
        is_closed=False,
        delayed=0,
        put_rate=1.0,
        ack_rate=1.0,
        consumers_ready=0,
        consumers_awaited=0,
    )
