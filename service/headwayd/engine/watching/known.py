"""What is known about the watched messages of one queue. Knows no store and no tasks: `feed` brings what was looked at.

Two kinds of look come here, in whatever order their answers arrive. A *read* tells everything that happened since the
last read. An *answer* tells where some messages are, and sometimes the whole line. Both say how many events had been
logged at their instant, so an event that somebody was asked about after it happened is passed over for them; and an
answer from before the last read is of no use, because what happened in between has been read already.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwayd.domain.model import Policy
from headwayd.domain.places import Event, Feed, Happening, LineNumbers, MessagePlace, Shape, Whereabouts
from headwayd.domain.watching import End, Told, ToldDelayed, ToldFinished, ToldLeased, ToldWaiting
from headwayd.engine.watching.estimates import Estimator
from headwayd.engine.watching.line import Glance, Line
from headwayd.engine.watching.roll import Roll
from headwayd.engine.watching.telling import TRUE_FOR_S
from headwayd.engine.watching.watch import Ending, Watch, ending_of, unknown


class Known:
    """The line, and where each watched message is. `now` is this process's clock, in seconds.

    After every call, `doubtful` holds those whose place must be asked for, and `must_read` says that somebody waits for
    a newer look."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._roll = Roll()
        self._line: Line | None = None  # None: not known, or too large: positions must be asked for
        self.generation = ""  # of the queue's life that is watched; "" = not known
        self._seen: Glance | None = None  # the last read
        self.base: LineNumbers | None = None  # up to where the log was read; None: begin anew with an answer
        self.losses = 0  # of track; an answer to what was asked before the last is not to be used
        self.doubtful: dict[Watch, None] = {}
        self.must_read = False

    # -- what feed needs to know --------------------------------------------------------------------------------------

    @property
    def wants_shape(self) -> bool:
        """Whether the next answer should tell the whole line."""
        return self._line is None

    @property
    def wants_answer(self) -> bool:
        """Whether somebody's place must be asked for."""
        return bool(self.doubtful) or (self.base is None and not self._roll.is_empty)

    def next_time(self) -> float | None:
        """When `come` has something to do."""
        return self._roll.next_time()

    def set_policy(self, policy: Policy) -> None:
        """What the hints are made from."""
        self._roll.policy = policy

    # -- answers ------------------------------------------------------------------------------------------------------

    def accept(self, glance: Glance, shape: Shape | None) -> bool:
        """Whether an answer can be used; if not, it must be asked for again. The first says where reading begins."""
        numbers, base = glance.numbers, self.base
        if self.generation and numbers.generation != self.generation:
            if base is not None and numbers.at_ms < base.at_ms:
                return False
            self.end_all()
        elif base is not None and numbers.logged < base.logged:
            return False
        if self.base is None:
            self.generation = numbers.generation
            self.base, self._seen = numbers, glance
        if shape is not None and (self._line is None or self._line.glance.is_before(glance)):
            self._line = Line(glance, shape)
        self._estimator.observe(numbers)
        return True

    def place(self, watch: Watch, place: MessagePlace, glance: Glance, now: float) -> None:
        """Where a message was at the instant of an accepted answer."""
        self.doubtful.pop(watch, None)
        if place.state is Whereabouts.FINISHED:
            self._end(watch, ending_of(place), glance)
            return
        if place.state is Whereabouts.UNKNOWN:
            self._end(watch, unknown(was_known=bool(watch.ref)), glance)
            return
        known = (watch.state, watch.ref, watch.attempt, watch.progress)
        if known != (place.state, place.ref, place.attempt, place.progress):
            self._roll.rest(watch)
            watch.become(place.state, glance)
        self._enter(watch, place.ref)
        watch.glance, watch.position = glance, place.position
        watch.attempt, watch.progress, watch.due_at_ms = place.attempt, place.progress, place.due_at_ms
        is_waiting = place.state is Whereabouts.WAITING
        if is_waiting and watch.ticket > glance.numbers.head:
            self._roll.await_head(watch)
        if watch.is_changed or watch.is_pending:
            watch.watcher.note(watch)
        elif is_waiting:
            self._locate(watch)
            self._weigh(watch, now)

    # -- reads --------------------------------------------------------------------------------------------------------

    def take(self, read: Feed, glance: Glance, now: float) -> bool:
        """What was read since `base`. False if that cannot be told, or not be put in order: everybody's place must be
        asked for."""
        base, numbers, line = self.base, glance.numbers, self._line
        assert base is not None
        if numbers.generation != base.generation:
            self.end_all()
            return True
        # Reads come one after the other: if time did not, the store's clock went back, and by their times what is known
        # from before would be newer than all that comes, for as long as the clock went back.
        if read.events is None or numbers.at_ms < base.at_ms:
            self.lose_track()
            return False
        back = 0
        for number, event in enumerate(read.events, base.logged + 1):
            back += event.what is Happening.BACK
            if line is not None and line.glance.numbers.logged < number:
                line.apply(event)
            for watch in self._roll.of(event.ref):
                if watch.glance is glance or watch.glance is None or watch.glance.numbers.logged < number:
                    self._happened(watch, event, glance)
        self.base, self._seen = numbers, glance
        left = base.length + numbers.tail - base.tail + back - numbers.length
        self._roll.count(left=left, back=back)
        self._estimator.observe(numbers)
        if line is not None and not glance.is_before(line.glance) and not line.move(glance):
            self._lose_line()
        for watch in self._roll.passed(numbers.head):
            if self._line is None or not self._line.position(watch.ticket):
                self.doubtful[watch] = None  # a foreign client took it
        if left or back:
            self._look(self._roll.moved(), now)
        return True

    def _happened(self, watch: Watch, event: Event, glance: Glance) -> None:
        match event.what:
            case Happening.REPLACED:
                return
            case Happening.PROGRESS:
                if watch.state is not Whereabouts.LEASED:
                    return
                watch.progress, watch.glance, watch.is_changed = event.progress, glance, True
            case Happening.ENDED | Happening.DEAD:
                self._end(watch, ending_of(event), glance)
                return
            case Happening.LEASED:
                self._move(watch, Whereabouts.LEASED, glance)
                watch.attempt = event.attempt
            case Happening.DELAYED:
                self._move(watch, Whereabouts.DELAYED, glance)
                self._enter(watch, event.to)
                watch.due_at_ms = event.due_at_ms
            case Happening.BACK:
                self._move(watch, Whereabouts.WAITING, glance)
            case Happening.JOINED:
                self._move(watch, Whereabouts.WAITING, glance)
                self._enter(watch, event.to)
                self._roll.await_head(watch)
        watch.watcher.note(watch)

    def _move(self, watch: Watch, state: Whereabouts, glance: Glance) -> None:
        self._roll.rest(watch)
        watch.become(state, glance)

    def _enter(self, watch: Watch, ref: str) -> None:
        if watch.ref and watch.ref != ref:
            watch.told_position = 0  # it stands in line anew: a larger position is no moving back
        self._roll.enter(watch, ref)

    def come(self, now: float) -> None:
        """Tells of those whose time has come."""
        self._look(self._roll.come(now), now)

    def _look(self, watches: Iterable[Watch], now: float) -> None:
        """Tells of those whose position is due, and puts off the others."""
        for watch in watches:
            if watch.state is not Whereabouts.WAITING or watch.is_pending:
                continue
            if self._locate(watch):
                self._weigh(watch, now)
            else:
                self.doubtful[watch] = None

    def _weigh(self, watch: Watch, now: float) -> None:
        if self._roll.is_due(watch, now):
            watch.watcher.note(watch)
        else:
            self._roll.put_off(watch, now)

    def _locate(self, watch: Watch) -> bool:
        """Works out the position as of the newest look; False if that cannot be done here."""
        line = self._line
        if line is None:
            return False
        if watch.glance is not None and line.glance.is_before(watch.glance):
            return watch.position > 0
        position = line.position(watch.ticket)
        if position:
            watch.position, watch.glance = position, line.glance
        return position > 0

    # -- telling ------------------------------------------------------------------------------------------------------

    def tell(self, watch: Watch, now: float) -> Told | None:
        """What is to be told of a message now; None if that is not known for sure: then it is found out."""
        is_waiting = watch.state is Whereabouts.WAITING
        if is_waiting and not self._is_sure_of(watch, now):
            return None
        told = self._told(watch)
        watch.is_changed = False
        watch.told_position = watch.position if is_waiting else 0
        watch.told_at = now
        if is_waiting:
            self._roll.put_off(watch, now)
        return told

    def _is_sure_of(self, watch: Watch, now: float) -> bool:
        """Whether the position is known, and was true a moment ago."""
        is_located = self._locate(watch)
        if watch.position and watch.glance is not None and now - watch.glance.at <= TRUE_FOR_S:
            return True
        if is_located:
            self.must_read = True
        else:
            self.doubtful[watch] = None
        return False

    def _told(self, watch: Watch) -> Told:
        if watch.ending is not None:
            at_ms = watch.glance.numbers.at_ms if watch.glance is not None else None
            return ToldFinished(watch.id, at_ms, watch.ending.end, watch.ending.result, watch.ending.cause)
        glance = watch.glance
        assert glance is not None
        if watch.state is Whereabouts.WAITING:
            return ToldWaiting(
                id=watch.id,
                at_ms=glance.numbers.at_ms,
                position=watch.position,
                length=glance.numbers.length,
                limit=glance.numbers.limit,
                hints=self._roll.hints(watch.position),
                eta=self._estimator.estimate(watch.position),
                is_moved_back=0 < watch.told_position < watch.position,
            )
        if self._seen is not None and glance.is_before(self._seen):
            glance = self._seen  # nothing has happened to it since
        numbers = glance.numbers
        if watch.state is Whereabouts.DELAYED:
            hints = self._roll.hints(0)
            return ToldDelayed(watch.id, numbers.at_ms, watch.due_at_ms, numbers.length, numbers.limit, hints)
        return ToldLeased(watch.id, numbers.at_ms, watch.attempt, watch.progress)

    # -- losing -------------------------------------------------------------------------------------------------------

    def leave(self, watch: Watch) -> None:
        """Watched no more."""
        self.doubtful.pop(watch, None)
        if watch.ref:
            self._roll.leave(watch)

    def _end(self, watch: Watch, ending: Ending, glance: Glance | None) -> None:
        self.leave(watch)
        watch.end(ending, glance)
        watch.watcher.note(watch)

    def end_all(self) -> None:
        """The queue is no more, or this is another one of its name. When that happened nobody knows."""
        roll, self._roll = self._roll, Roll()  # all at once: to leave it one by one takes each of them the longest
        self._roll.policy = roll.policy
        self.doubtful.clear()
        ending = Ending(End.DELETED)
        for watch in roll:
            watch.end(ending, None)
            watch.watcher.note(watch)
        self.generation = ""
        self.base = self._line = self._seen = None

    def lose_track(self) -> None:
        """What happened is not known: everybody's place must be asked for."""
        self.losses += 1
        self.base = self._line = None
        for watch in self._roll:
            self.doubtful[watch] = None

    def _lose_line(self) -> None:
        """The line is to be seen whole again, and those who came back may not be there any more."""
        line, self._line = self._line, None
        for ticket in line.returned if line else ():
            for watch in self._roll.of(str(ticket)):
                self.doubtful[watch] = None
