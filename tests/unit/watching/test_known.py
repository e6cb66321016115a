"""Looks that overtake each other, and what is told of them."""

from __future__ import annotations

import pytest

from headwayd.domain.places import Feed
from headwayd.domain.watching import End, ToldFinished, ToldLeased, ToldWaiting
from headwayd.engine.watching.estimates import NoEstimator
from headwayd.engine.watching.known import Known
from headwayd.engine.watching.line import Glance
from headwayd.engine.watching.telling import TRUE_FOR_S
from headwayd.engine.watching.watch import Watch, Watcher
from unit.watching.fake_queue import FakeQueue


def watch_of(name: str) -> Watch:
    return Watcher([name]).watches[0]


def answer(known: Known, queue: FakeQueue, *watches: Watch, now: float = 0.0) -> None:
    """Asks, and hears at once."""
    places = queue.places_of([watch.id for watch in watches], with_shape=known.wants_shape)
    glance = Glance(places.numbers, now)
    assert known.accept(glance, places.shape)
    for watch, place in zip(watches, places.places, strict=True):
        known.place(watch, place, glance, now)


def take(known: Known, read: Feed, now: float = 0.0) -> None:
    """Hears a read."""
    known.take(read, Glance(read.numbers, now), now)


def read(known: Known, queue: FakeQueue, now: float = 0.0) -> None:
    """Reads, and hears at once."""
    assert known.base is not None
    take(known, queue.read(known.base.logged), now)


def test_a_read_from_before_an_answer_does_not_take_its_message_back_in_time() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    queue.put(), queue.put()
    first, second = watch_of("m1"), watch_of("m0")
    answer(known, queue, first)
    queue.lease()
    late = queue.read(0)
    queue.give_back("m0")
    answer(known, queue, second)
    take(known, late)
    assert isinstance(known.tell(second, 0.0), ToldWaiting)
    read(known, queue)
    told = known.tell(first, 0.0)
    assert isinstance(told, ToldWaiting)
    assert (told.position, told.is_moved_back) == (2, False)


def test_an_answer_from_before_a_read_is_not_used() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    queue.put(), queue.put()
    answer(known, queue, watch_of("m1"))
    stale = Glance(queue.numbers, 0.0)
    queue.lease()
    read(known, queue)
    assert not known.accept(stale, None)


def test_everything_that_happened_between_two_reads_counts() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    queue.put()
    watch = watch_of("m0")
    answer(known, queue, watch)
    queue.lease()
    queue.give_back("m0")
    queue.lease()
    read(known, queue)
    told = known.tell(watch, 0.0)
    assert isinstance(told, ToldLeased)
    assert told.attempt == 2
    queue.end("m0")
    read(known, queue)
    assert isinstance(known.tell(watch, 0.0), ToldFinished)


def test_a_position_that_was_seen_too_long_ago_is_not_told() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    queue.put()
    watch = watch_of("m0")
    answer(known, queue, watch)
    assert not known.must_read
    assert known.tell(watch, TRUE_FOR_S + 0.01) is None
    assert known.must_read
    read(known, queue, now=TRUE_FOR_S)
    assert isinstance(known.tell(watch, TRUE_FOR_S + 0.01), ToldWaiting)


def test_moved_back_is_told_only_of_what_stands_where_it_stood() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    for _ in range(3):
        queue.put()
    behind, replaced = watch_of("m2"), watch_of("m1")
    answer(known, queue, behind, replaced)
    queue.lease()
    read(known, queue)
    for watch, position in ((behind, 2), (replaced, 1)):
        told = known.tell(watch, 0.0)
        assert isinstance(told, ToldWaiting)
        assert (told.position, told.is_moved_back) == (position, False)
    queue.give_back("m0")
    queue.delay("m1")
    queue.put()
    queue.fall_due("m1")
    queue.delay("m0")
    queue.fall_due("m0")
    queue.lease()
    queue.give_back("m2")
    read(known, queue)
    told = known.tell(replaced, 0.0)
    assert isinstance(told, ToldWaiting)
    assert (told.position, told.is_moved_back) == (3, False)


def test_another_life_of_the_queue_ends_every_watch_and_no_instant_is_claimed() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    queue.put()
    watch = watch_of("m0")
    answer(known, queue, watch)
    other = FakeQueue("g2")
    other.put()
    read(known, other)
    told = known.tell(watch, 0.0)
    assert isinstance(told, ToldFinished)
    assert (told.end, told.at_ms) == (End.DELETED, None)


def test_when_the_clock_of_the_store_goes_back_everybody_is_asked_about_and_told_on() -> None:
    queue, known = FakeQueue(), Known(NoEstimator())
    for _ in range(3):
        queue.put()
    working, waiting = watch_of("m0"), watch_of("m2")
    queue.lease()
    answer(known, queue, working, waiting)
    queue.now -= 500
    asked_at = 10.0
    read(known, queue, now=asked_at)  # nothing else has happened
    assert known.wants_shape
    assert list(known.doubtful) == [working, waiting]
    assert known.tell(waiting, asked_at) is None  # by its time what was known would be the newer
    answer(known, queue, *known.doubtful, now=asked_at)
    told = known.tell(waiting, asked_at)
    assert isinstance(told, ToldWaiting)
    assert (told.at_ms, told.position, told.is_moved_back) == (queue.now, 2, False)
    told = known.tell(working, asked_at)
    assert isinstance(told, ToldLeased)
    assert told.at_ms == queue.now
    queue.end("m0")
    queue.lease()
    read(known, queue, now=asked_at)
    assert isinstance(known.tell(working, asked_at), ToldFinished)
    assert isinstance(known.tell(waiting, asked_at), ToldWaiting)


def test_a_line_with_too_many_gaps_and_returned_messages_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwayd.engine.watching.line.MOST_TICKETS", 20)
    queue, known = FakeQueue(), Known(NoEstimator())
    names = [queue.put() for _ in range(60)]
    watch = watch_of(names[-1])
    answer(known, queue, watch)
    for _ in range(10):
        queue.lease()
    read(known, queue)
    for name in names[:10]:
        queue.give_back(name)
    for name in names[30:40]:
        queue.end(name)
    read(known, queue)
    assert not known.wants_shape
    queue.end(names[40])
    read(known, queue)
    assert known.wants_shape  # which the store then does not tell
    later = TRUE_FOR_S + 1
    assert known.tell(watch, later) is None
    assert list(known.doubtful) == [watch]
    places = queue.places_of([watch.id], with_shape=False)
    glance = Glance(places.numbers, later)
    assert known.accept(glance, None)
    known.place(watch, places.places[0], glance, later)
    told = known.tell(watch, later)
    assert isinstance(told, ToldWaiting)
    assert (told.position, told.length) == (49, 49)
