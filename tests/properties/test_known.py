"""What is worked out about the watched messages is what a plain list says, in whatever order looks arrive."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwayd.domain.model import Outcome
from headwayd.domain.places import Feed, Places, Whereabouts
from headwayd.domain.watching import End, ToldDelayed, ToldFinished, ToldLeased, ToldWaiting
from headwayd.engine.watching.estimates import NoEstimator
from headwayd.engine.watching.known import Known
from headwayd.engine.watching.line import Glance, Line
from headwayd.engine.watching.watch import Watch, Watcher
from unit.watching.fake_queue import FakeQueue

DELAYED, LEASED, WAITING = Whereabouts.DELAYED, Whereabouts.LEASED, Whereabouts.WAITING
STEPS = ["put", "lease", "lease", "back", "end", "withdraw", "delay", "due", "replace", "progress", "foreign"]
LOOKS = ["join", "ask", "ask", "hear_answer", "read", "read", "hear_read", "hear_read"]
NUMBERS = st.integers(0, 50)
# What befalls one message, and in which states it can.
ACTS: dict[str, tuple[tuple[Whereabouts, ...], Callable[[FakeQueue, str], None]]] = {
    "back": ((LEASED,), FakeQueue.give_back),
    "end": ((LEASED, WAITING), FakeQueue.end),
    "withdraw": ((WAITING, DELAYED), lambda queue, name: queue.end(name, Outcome.WITHDRAWN)),
    "delay": ((LEASED, WAITING), FakeQueue.delay),
    "due": ((DELAYED,), FakeQueue.fall_due),
    "replace": ((LEASED,), FakeQueue.fall_due),
    "progress": ((LEASED,), FakeQueue.progress),
}
STATE_OF = {ToldWaiting: WAITING, ToldDelayed: DELAYED, ToldLeased: LEASED, ToldFinished: Whereabouts.FINISHED}


def happen(queue: FakeQueue, step: str, number: int) -> None:
    """One step of the queue, if it can be done."""
    if step == "put":
        queue.put()
    elif step in ("lease", "foreign"):
        if queue.line:
            {"lease": queue.lease, "foreign": queue.foreign_pop}[step]()
    else:
        states, act = ACTS[step]
        names = [name for state in states for name in queue.of(state)]
        if names:
            act(queue, names[number % len(names)])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([*STEPS, "look"]), NUMBERS), min_size=30, max_size=150))
def test_a_line_that_is_followed_is_the_line(steps: list[tuple[str, int]]) -> None:
    queue = FakeQueue()
    line = Line(Glance(queue.numbers, 0.0), queue.shape)
    logged = 0
    for step, number in [*steps, ("look", 0)]:
        if step != "look":
            happen(queue, step, number)
            continue
        for event in queue.log[logged:]:
            line.apply(event)
        logged = len(queue.log)
        assert line.move(Glance(queue.numbers, 0.0))
        assert [line.position(ticket) for ticket in queue.line] == list(range(1, len(queue.line) + 1))
        absent = set(range(queue.tail + 3)) - set(queue.line)
        assert not any(map(line.position, absent))


class Desk:
    """Looks at the queue and hands the answers on, some of them late."""

    def __init__(self, watched: int) -> None:
        self.queue = FakeQueue()
        for _ in range(watched):
            self.queue.put()
        self.known = Known(NoEstimator())
        self.watcher = Watcher([f"m{number}" for number in range(watched)])
        self.later = list(self.watcher.watches)  # do not watch yet
        self.newcomers: set[Watch] = set()
        self.answers: list[tuple[list[Watch], Places, Glance]] = []
        self.reads: list[tuple[object, Feed, Glance]] = []
        self.told_at_ms: dict[str, int] = {}
        self.now = 0.0

    def join(self) -> None:
        """One more begins to watch."""
        if self.later:
            self.newcomers.add(self.later.pop())

    def ask(self) -> None:
        """The store answers now; the answer arrives when it does."""
        watches = [*self.newcomers, *self.known.doubtful]
        if watches:
            places = self.queue.places_of([watch.id for watch in watches], with_shape=self.known.wants_shape)
            self.answers.append((watches, places, Glance(places.numbers, self.now)))

    def hear_answer(self) -> None:
        """What `feed` does with an answer."""
        if not self.answers:
            return
        watches, places, glance = self.answers.pop(0)
        if not self.known.accept(glance, places.shape):
            return
        for watch, place in zip(watches, places.places, strict=True):
            if watch in self.newcomers or watch in self.known.doubtful:
                self.newcomers.discard(watch)
                self.known.place(watch, place, glance, self.now)

    def read(self) -> None:
        """The store tells now what happened; one read at a time is under way."""
        if self.known.base is not None and not self.reads:
            read = self.queue.read(self.known.base.logged)
            self.reads.append((self.known.base, read, Glance(read.numbers, self.now)))

    def hear_read(self) -> None:
        """What `feed` does with a read."""
        if self.reads:
            base, read, glance = self.reads.pop()
            if self.known.base is base:
                self.known.take(read, glance, self.now)

    def tell(self, watch: Watch) -> None:
        """What is told is what was true at the instant it names."""
        if watch in self.newcomers or watch in self.later:
            return
        told = self.known.tell(watch, self.now)
        if told is None:
            return
        assert told.at_ms is not None
        assert told.at_ms >= self.told_at_ms.get(watch.id, 0), "it went back in time"
        self.told_at_ms[watch.id] = told.at_ms
        assert STATE_OF[type(told)] is self.queue.whereabouts[told.at_ms][watch.id]
        if isinstance(told, ToldWaiting):
            assert self.queue.lines[told.at_ms][told.position - 1] == watch.id
            assert told.length == len(self.queue.lines[told.at_ms])

    def settle(self) -> None:
        """Everything that is on its way arrives, and whatever is wanted is asked for."""
        self.newcomers.update(self.later)
        self.later.clear()
        while self.answers:
            self.hear_answer()
        for _ in range(5):
            for step in (self.hear_answer, self.hear_read, self.read, self.hear_read, self.ask, self.hear_answer):
                step()
        assert not self.newcomers
        assert not self.known.doubtful


@example(2, [*[("put", 0)] * 29, ("join", 0), *[("ask", 0)] * 10])  # many answers on their way when all is to settle
@settings(max_examples=400)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from([*STEPS, *LOOKS, "tell", "tell", "lose_track"]), NUMBERS),
        min_size=40,
        max_size=200,
    ),
)
def test_whatever_is_told_was_true_at_its_instant_and_in_the_end_all_is_known(
    watched: int, steps: list[tuple[str, int]]
) -> None:
    desk = Desk(watched)
    for step, number in steps:
        desk.now += 0.001
        if step == "tell":
            desk.tell(desk.watcher.watches[number % watched])
        elif step in LOOKS:
            getattr(desk, step)()
        elif step == "lose_track":
            desk.known.lose_track()
            desk.answers.clear()  # as `feed` does
        else:
            happen(desk.queue, step, number)
    desk.settle()
    for watch in desk.watcher.watches:
        place, told = desk.queue.place(watch.id), desk.known.tell(watch, desk.now)
        match told:
            case ToldWaiting():
                assert (place.state, place.position) == (WAITING, told.position)
            case ToldDelayed():
                assert place.state is DELAYED
            case ToldLeased():
                assert (place.state, place.attempt) == (LEASED, told.attempt)
            case ToldFinished():
                assert place.state is Whereabouts.FINISHED
                wanted = {Outcome.DONE: End.DONE, Outcome.WITHDRAWN: End.WITHDRAWN, Outcome.UNKNOWN: End.TAKEN}
                assert told.end is wanted[desk.queue.outcomes[watch.id]]
            case _:
                raise AssertionError(f"nothing is known of {watch.id}")
