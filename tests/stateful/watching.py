"""What must hold after every step, also of what those who watch know of the line."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from headwayd.domain.places import Feed, Happening, LineNumbers, Shape, Whereabouts, ticket_of_order
from stateful.clients import ClientsMachine
from stateful.machines import BUDGET

FINISHED = {"dead": "finished"}


class Watched:
    """A line as those who watch know it: what stood there once, and what they were told since."""

    def __init__(self, numbers: LineNumbers, shape: Shape) -> None:
        self.numbers = numbers
        self._returned = {ticket_of_order(order): order for order in shape.returned}
        self._gaps = set(shape.gaps)

    def apply(self, feed: Feed) -> None:
        assert feed.events is not None
        for event in feed.events:
            if event.what is Happening.BACK:
                self._returned[int(event.ref)] = event.order
            elif event.what not in (Happening.PROGRESS, Happening.REPLACED) and event.ref.isdigit():
                self._returned.pop(int(event.ref), None)
                self._gaps.add(int(event.ref))
        self.numbers = feed.numbers
        self._gaps = {ticket for ticket in self._gaps if ticket > self.numbers.head}

    def line(self) -> list[int]:
        fresh = range(self.numbers.head + 1, self.numbers.tail + 1)
        return sorted(self._returned, key=self._returned.__getitem__) + [
            ticket for ticket in fresh if ticket not in self._gaps
        ]


class WatchedMachine(ClientsMachine):
    """Clients whose queue is looked at after every step."""

    watched: Watched | None

    def _begin_life(self, generation: str) -> None:
        super()._begin_life(generation)
        self.watched = None

    @invariant()
    def numbers_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        queue = self.run(self.store.describe(self.name, **BUDGET))
        counts, model = queue.counts, self.model
        assert counts.length == len(model.line)
        holes = self.raw.zcard(f"{self.base}:x:holes") if self.generation else 0  # else of the life before
        assert counts.length == self.raw.llen(self.base) - holes
        assert counts.leased == len(model.leased)
        assert counts.delayed == len(model.delayed)
        assert counts.dead == len(model.dead)
        assert counts.returned == len(model.returned)
        assert counts.accepted == model.accepted
        assert counts.acked == model.acked
        assert counts.withdrawn == model.withdrawn
        assert counts.expired == model.expired
        assert counts.taken_by_foreign == model.foreign
        assert queue.is_closed == model.is_closed
        states = counts.length + counts.leased + counts.delayed + counts.dead
        assert counts.accepted == states + counts.acked + counts.expired + counts.withdrawn + counts.taken_by_foreign
        assert model.limit == 0 or counts.leased <= model.limit

    @invariant()
    def not_full_is_there_exactly_while_there_is_room(self) -> None:
        if not hasattr(self, "model"):
            return
        tokens = self.raw.llen(f"{self.base}:not_full")
        has_room = self.model.bound == 0 or len(self.model.line) < self.model.bound
        assert tokens == (1 if has_room else 0)

    @precondition(lambda self: bool(self.generation))
    @rule()
    def begin_to_watch(self) -> None:
        places = self.run(self.store.places(self.name, [], with_shape=True, **BUDGET))
        assert places.shape is not None
        self.watched = Watched(places.numbers, places.shape)

    @invariant()
    def who_watches_knows_every_place(self) -> None:
        if not hasattr(self, "model") or self.watched is None or not self.generation:
            return
        known = self.watched.numbers
        feed = self.run(self.store.feed(self.name, generation=known.generation, logged=known.logged, **BUDGET))
        if feed.events is None:
            self.begin_to_watch()
        else:
            self.watched.apply(feed)
        assert self.watched.line() == self.model.line
        assert self.watched.numbers.length == len(self.model.line)
        assert self.watched.numbers.leased == len(self.model.leased)

    @precondition(lambda self: bool(self.generation))
    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=6))
    def look_for_messages(self, picks: list[int]) -> None:
        names, ids = self._names(picks)
        places = self.run(self.store.places(self.name, ids, with_shape=False, **BUDGET))
        for name, place in zip(names, places.places, strict=True):
            found = self.model.find(name)
            state = Whereabouts.UNKNOWN if found is None else Whereabouts(FINISHED.get(found.where, found.where))
            assert place.state is state, name
            if found is None:
                continue
            waits = found.where == "waiting"
            assert place.position == (self.model.line.index(found.ref) + 1 if waits else 0)
            assert str(place.outcome or "") == ("DEAD" if found.where == "dead" else found.outcome)
            assert place.result == found.result
