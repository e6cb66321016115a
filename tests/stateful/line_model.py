"""The rules of one queue's consumer line, in plain Python: who stands where, who may lease, who goes on, who is lost.

Messages are only counted here, and every one is like another. Members of the line are waiters ("process#n") and kept
places ("@…"). Time is a number the test moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OVER = 10**9
BEFORE_ALL = 10**15
OFFER_MS = 2_000
CALLED_AT_ONCE = 16


@dataclass
class Lease:
    """One lease that is out. `owner` is the waiter whose stream it belongs to."""

    deadline: int
    owner: str | None


@dataclass
class Kept:
    """A kept place: when the next poll may come, until when it is waited for, and its strikes."""

    min_at: int
    max_at: int
    strikes: int


@dataclass
class Given:
    """What a get gave: how many messages, or why not; and how the waiter stands then."""

    count: int = 0
    refused: str = ""
    number: int = 0
    position: int = 0
    length: int = 0
    was_dropped: bool = False


@dataclass
class LineModel:
    """One queue, of which only the line of consumers is of interest."""

    now: int
    limit: int
    turns_most: int
    grace_ms: int
    strikes_most: int
    tolerance_ms: int
    ready: int = 0
    present: set[str] = field(default_factory=set)  # processes that are heard
    line: dict[str, int] = field(default_factory=dict)  # member → number
    kept: dict[str, Kept] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)  # token → lease
    turns: dict[str, int] = field(default_factory=dict)
    numbers: int = 0
    turn_to: str = ""
    turn_at: int = 0

    # -- looking ------------------------------------------------------------------------------------------------------

    def order(self) -> list[str]:
        """The line, the first first."""
        return sorted(self.line, key=lambda member: (self.line[member], member))

    def position(self, member: str) -> int:
        """The rank; 0 = it does not stand there."""
        return self.order().index(member) + 1 if member in self.line else 0

    def there(self) -> tuple[int, int]:
        """How many take what comes at once: those before the first place that is waited for; and how many such places
        there are."""
        awaited = [member in self.kept and self.kept[member].max_at >= self.now for member in self.order()]
        first = awaited.index(True) if any(awaited) else len(awaited)
        return sum(member not in self.kept for member in self.order()[:first]), sum(awaited)

    def held(self, waiter: str) -> int:
        """How many leases its stream owns."""
        return sum(lease.owner == waiter for lease in self.leases.values())

    def units(self) -> int:
        """How many can be leased now."""
        return min(self.ready, max(0, (self.limit or OVER) - len(self.leases)))

    @staticmethod
    def _process(member: str) -> str:
        return member.rpartition("#")[0]

    def _walk(self, most: int, *, until: str = "", gone: str = "") -> list[str]:
        """The first present ones, up to so many or up to `until`. Who is gone is dropped on the way."""
        met: list[str] = []
        for member in self.order():
            if member == until or len(met) >= most:
                break
            if member.startswith("@"):
                if self.kept[member].max_at >= self.now:
                    met.append(member)
            elif self._process(member) in self.present and self._process(member) != gone:
                met.append(member)
            else:
                del self.line[member]
        return met

    # -- what every step does before and after ------------------------------------------------------------------------

    def do_due(self) -> None:
        """Leases lapse, and places are lost."""
        self.end([token for token, lease in self.leases.items() if lease.deadline <= self.now], back=True)
        for place, kept in list(self.kept.items()):
            if kept.max_at + 1 + self.grace_ms <= self.now:
                self.forget(place)

    def commit(self) -> None:
        """Whoever's turn it is is called; the first who lets it pass for long has its process passed over."""
        if not self.turn_to and not (self.ready and self.line):
            return
        first, units = "", min(self.units(), CALLED_AT_ONCE)
        if units:
            gone = ""
            if self.turn_to and self.now - self.turn_at >= OFFER_MS and self.line.pop(self.turn_to, None) is not None:
                gone = self._process(self.turn_to)
            called = self._walk(units, gone=gone)
            first = next((member for member in called if not member.startswith("@")), "")
        if first != self.turn_to:
            self.turn_to, self.turn_at = first, self.now

    # -- steps --------------------------------------------------------------------------------------------------------

    def put(self, count: int) -> None:
        """More to lease."""
        self.do_due()
        self.ready += count
        self.commit()

    def end(self, tokens: list[str], *, back: bool = False, is_settled: bool = False) -> None:
        """Leases end. Whoever has settled the last of its turn, and keeps standing, goes on before all others."""
        for token in tokens:
            owner = self.leases.pop(token).owner
            self.ready += back
            if owner is None or self.held(owner):
                continue
            had = self.turns.get(owner, 0)
            goes_on = had and is_settled and (not self.turns_most or had < self.turns_most)
            if goes_on and self._process(owner) in self.present:
                self.numbers += 1
                self.line.setdefault(owner, self.numbers - BEFORE_ALL)
            else:
                self.turns.pop(owner, None)

    def forget(self, place: str) -> None:
        """A kept place is no more."""
        self.line.pop(place, None)
        self.kept.pop(place, None)

    def come_back(self, place: str, units: int | None) -> tuple[str, int]:
        """Why it cannot, or ""; and its number. Only who polls, and so has `units`, may come too early; for nobody else
        it is looked who stands before."""
        kept, number = self.kept[place], self.line[place]
        early = kept.min_at - self.tolerance_ms - self.now > 0
        if early and units is not None and (units == 0 or len(self._walk(units, until=place)) >= units):
            kept.strikes += 1
            if kept.strikes < self.strikes_most:
                return "POLL_TOO_SOON", 0
            self.forget(place)
            return "PLACE_LOST", 0
        if not early:
            kept.strikes = max(0, kept.strikes - 1)
        del self.line[place]
        return "", number

    def get(self, waiter: str, *, number: int, place: str, most: int, ack: list[str], keeps: bool | None) -> Given:
        """Acks, unless its place is lost, then leases; `keeps` is None for a waiter whose stream owns nothing."""
        self.do_due()
        if place and (place not in self.kept or place not in self.line):
            self.commit()
            return Given(refused="PLACE_LOST")
        self.end(ack, is_settled=True)
        return self._lease(waiter, number=number, place=place, most=most, ended=len(ack), keeps=keeps)

    def _lease(self, waiter: str, *, number: int, place: str, most: int, ended: int, keeps: bool | None) -> Given:
        given, had_number = Given(), number != 0
        if keeps is not None and not number:
            number = self.line.get(waiter, 0)
        if place:
            is_poll = not ended and keeps is None
            given.refused, number = self.come_back(place, self.units() if is_poll else None)
            if given.refused:
                self.commit()
                return given
        if ended and self.limit and not number:
            self.numbers += 1
            number = self.numbers - BEFORE_ALL
        if waiter and number:
            given.was_dropped = had_number and waiter not in self.line
            self.line.setdefault(waiter, number)
        slots = max(0, (self.limit or OVER) - len(self.leases))
        units = min(self.ready, slots)
        if units:
            ahead = min(len(self._walk(units, until=waiter)), units - min(ended, units))
            given.count = min(most, units - ahead)
        if waiter and given.count:
            self.line.pop(waiter, None)
            self.forget(place)
            if self.turn_to == waiter:
                self.turn_to = ""
            if keeps:
                self.turns[waiter] = self.turns.get(waiter, 0) + 1
        elif waiter:
            if not number:
                self.numbers += 1
                number = self.numbers
            self.line.setdefault(waiter, number)
            given.position = self.position(waiter)
        self.ready -= given.count
        given.number, given.length = number, len(self.line) if waiter else 0
        return given

    def get_together(self, asks: list[tuple[str, int, int, list[str]]]) -> list[Given]:
        """The same for several in one step, given as name ("" = it does not wait), number, most messages and leases to
        ack: none of them has a number, or all have, in order. Who does not stand directly behind the one before gets
        nothing."""
        self.do_due()
        for *_, ack in asks:
            self.end(ack, is_settled=True)
        was_dropped = any(number and waiter not in self.line for waiter, number, *_ in asks)
        for waiter, number, *_ in asks:
            if number:
                self.line.setdefault(waiter, number)
        first, is_numbered, *_ = asks[0]
        left = self.units()
        ahead = len(self._walk(left, until=first)) if left else 0
        order = self.order()
        at = order.index(first) if is_numbered else 0
        all_given = []
        for i, (waiter, number, most, ack) in enumerate(asks):
            if is_numbered and order[at + i : at + i + 1] != [waiter]:
                left = 0
            may = max(left - ahead, min(len(ack), left))  # what it has earned by its own leases, or what is left
            given = Given(count=min(most, may), number=number, was_dropped=was_dropped)
            left -= given.count
            if waiter and given.count:
                self.line.pop(waiter, None)
                if self.turn_to == waiter:
                    self.turn_to = ""
            elif waiter:
                if not number:
                    self.numbers += 1
                    given.number = self.numbers
                self.line.setdefault(waiter, given.number)
                given.position = self.position(waiter)
            self.ready -= given.count
            all_given.append(given)
        for given in all_given:
            given.length = len(self.line)
        return all_given

    def leave(self, waiter: str) -> None:
        """Place and turns are given up, and by a step of their own leases."""
        self.line.pop(waiter, None)
        self.turns.pop(waiter, None)
        self.commit()
        self._give_back(waiter)

    def _give_back(self, waiter: str) -> None:
        """What its stream has leased."""
        if tokens := [token for token, lease in self.leases.items() if lease.owner == waiter]:
            self.end(tokens, back=True)
            self.commit()

    def keep(self, waiter: str, place: str, *, number: int, min_ms: int, max_ms: int) -> tuple[int, int]:
        """Position and length, when the place stands for the waiter. Nothing is kept for whoever did not stand."""
        found = number or self.line.get(waiter) or self.line.get(place)
        self.line.pop(waiter, None)
        self.turns.pop(waiter, None)
        if found:
            self.line[place] = found
            strikes = self.kept[place].strikes if place in self.kept else 0
            self.kept[place] = Kept(self.now + min_ms, self.now + max_ms, strikes)
        self.commit()
        told = self.position(place) if found else 0, len(self.line)
        self._give_back(waiter)
        return told

    def drop_absent(self, spared: set[str]) -> None:
        """Processes that are gone leave nothing behind."""
        heard, self.present = self.present, self.present | spared
        self.do_due()
        self._walk(OVER)
        gone = [token for token, lease in self.leases.items() if lease.owner and not self._is_there(lease.owner)]
        self.end(gone, back=True)
        self.turns = {waiter: count for waiter, count in self.turns.items() if self._is_there(waiter)}
        self.present = heard
        self.commit()

    def _is_there(self, waiter: str) -> bool:
        return self._process(waiter) in self.present
