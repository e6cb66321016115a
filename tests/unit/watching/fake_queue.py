"""A queue that is a plain sorted list, and that tells those who watch what a store would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headwayd.domain.errors import HeadwayError, QueueNotFound
from headwayd.domain.model import Outcome, Policy
from headwayd.domain.places import (
    Event,
    Feed,
    Happening,
    LineNumbers,
    MessagePlace,
    Places,
    Progress,
    Shape,
    Whereabouts,
)
from unit.rpc.fake_engine import queue_named


class FakeQueue:
    """Messages are named by number; `lines` and `whereabouts` remember every instant."""

    def __init__(self, generation: str = "g1") -> None:
        self.generation = generation
        self.policy = Policy()
        self.now = 1_000
        self.head = self.tail = self.departed = self.seq = 0
        self.line: list[int] = []  # the tickets that wait, in order
        self.log: list[Event] = []
        self.refs: dict[str, str] = {}  # id → where it is kept
        self.states: dict[str, Whereabouts] = {}
        self.attempts: dict[str, int] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.lines: dict[int, tuple[str, ...]] = {}
        self.whereabouts: dict[int, dict[str, Whereabouts]] = {}
        self._happened()

    def _happened(self, *events: Event) -> None:
        self.log += events
        while self.head < self.tail and self.head + 1 not in self.line:
            self.head += 1
        self.now += 1
        names = {ref: name for name, ref in self.refs.items()}
        self.lines[self.now] = tuple(names[str(ticket)] for ticket in self.line)
        self.whereabouts[self.now] = dict(self.states)

    def of(self, state: Whereabouts) -> list[str]:
        """The messages in this state, in order of their names."""
        return sorted(name for name, its in self.states.items() if its is state)

    def _join(self, name: str) -> str:
        self.tail += 1
        self.line.append(self.tail)
        self.refs[name], self.states[name] = str(self.tail), Whereabouts.WAITING
        return self.refs[name]

    def _out(self, name: str) -> str:
        if self.states[name] is Whereabouts.WAITING:
            self.line.remove(int(self.refs[name]))
        return self.refs[name]

    # -- what clients do ----------------------------------------------------------------------------------------------

    def put(self) -> str:
        """One more message."""
        name = f"m{len(self.refs)}"
        self._join(name)
        self._happened()
        return name

    def lease(self) -> None:
        """The first in line."""
        ticket = self.line.pop(0)
        [name] = [name for name, ref in self.refs.items() if ref == str(ticket)]
        self.states[name] = Whereabouts.LEASED
        self.attempts[name] = self.attempts.get(name, 0) + 1
        self.departed += 1
        self.head = max(self.head, ticket)
        self._happened(Event(what=Happening.LEASED, ref=str(ticket), attempt=self.attempts[name]))

    def give_back(self, name: str) -> None:
        """What was leased."""
        ref = self.refs[name]
        self.line = sorted([*self.line, int(ref)])
        self.states[name] = Whereabouts.WAITING
        self._happened(Event(what=Happening.BACK, ref=ref, order=int(ref)))

    def end(self, name: str, outcome: Outcome = Outcome.DONE) -> None:
        """Wherever it is."""
        ref = self._out(name)
        self.states[name], self.outcomes[name] = Whereabouts.FINISHED, outcome
        self._happened(Event(what=Happening.ENDED, ref=ref, outcome=outcome))

    def delay(self, name: str) -> None:
        """What waits or is leased."""
        ref = self._out(name)
        self.seq += 1
        self.refs[name], self.states[name] = f"d{self.seq}", Whereabouts.DELAYED
        self._happened(Event(what=Happening.DELAYED, ref=ref, to=f"d{self.seq}", due_at_ms=self.now + 5))

    def fall_due(self, name: str) -> None:
        """What was delayed, or leased and replaced."""
        ref = self.refs[name]
        self._happened(Event(what=Happening.JOINED, ref=ref, to=self._join(name)))

    def progress(self, name: str) -> None:
        """Of what is leased."""
        self._happened(Event(what=Happening.PROGRESS, ref=self.refs[name], progress=Progress(0.5, "half")))

    def foreign_pop(self) -> None:
        """Without telling, but for what had come back."""
        ticket = self.line.pop(0)
        [name] = [name for name, ref in self.refs.items() if ref == str(ticket)]
        self.states[name], self.outcomes[name] = Whereabouts.FINISHED, Outcome.UNKNOWN
        self.departed += 1
        had_come_back = ticket <= self.head
        self.head = max(self.head, ticket)
        event = Event(what=Happening.ENDED, ref=str(ticket), outcome=Outcome.UNKNOWN)
        self._happened(*[event] * had_come_back)

    # -- what those who watch ask -------------------------------------------------------------------------------------

    @property
    def numbers(self) -> LineNumbers:
        """As of now."""
        rest: dict[str, Any] = dict.fromkeys(LineNumbers.__dataclass_fields__, 0)
        rest |= {"generation": self.generation, "at_ms": self.now, "logged": len(self.log), "head": self.head}
        rest |= {"tail": self.tail, "length": len(self.line), "departures": self.departed}
        return LineNumbers(**rest)

    @property
    def shape(self) -> Shape:
        """The line as of now."""
        gaps = [ticket for ticket in range(self.head + 1, self.tail + 1) if ticket not in self.line]
        return Shape(returned=[ticket for ticket in self.line if ticket <= self.head], gaps=gaps)

    def place(self, name: str) -> MessagePlace:
        """Where a message is now."""
        state = self.states.get(name, Whereabouts.UNKNOWN)
        if state is Whereabouts.UNKNOWN:
            return MessagePlace(id=name, state=state)
        is_waiting = state is Whereabouts.WAITING
        return MessagePlace(
            id=name,
            state=state,
            ref=self.refs[name],
            position=self.line.index(int(self.refs[name])) + 1 if is_waiting else 0,
            attempt=self.attempts.get(name, 0) if state is Whereabouts.LEASED else 0,
            outcome=self.outcomes.get(name),
        )

    def places_of(self, names: Sequence[str], *, with_shape: bool) -> Places:
        """Where messages are, and the line."""
        return Places(
            polls=self.policy,
            numbers=self.numbers,
            places=[self.place(name) for name in names],
            shape=self.shape if with_shape else None,
        )

    def read(self, logged: int) -> Feed:
        """What happened since."""
        return Feed(polls=self.policy, numbers=self.numbers, events=self.log[logged:])


class FakeStore:
    """One queue, or none; counts what it is asked. With `error` set it raises that, with `hold` set it waits for it."""

    def __init__(self, queue: FakeQueue | None) -> None:
        self.queue = queue
        self.error: HeadwayError | None = None
        self.hold: asyncio.Event | None = None
        asked = ("places", "feed", "arm_watch", "arm_standing", "arm_blocked", "describe")
        self.asked: dict[str, int] = dict.fromkeys(asked, 0)
        self.withdrawn: list[str] = []
        self.withdrawn_from: list[str] = []  # the generation that each step named

    async def _ask(self, what: str, budget_s: float) -> FakeQueue:
        self.asked[what] += 1
        await asyncio.sleep(0)
        if self.hold is not None:
            async with asyncio.timeout(budget_s):
                await self.hold.wait()
        if self.error is not None:
            raise self.error
        if self.queue is None:
            raise QueueNotFound("there is none", metadata={"queue": "q"})
        return self.queue

    async def places(self, _name: str, message_ids: Sequence[str], *, with_shape: bool, budget_s: float) -> Places:
        return (await self._ask("places", budget_s)).places_of(message_ids, with_shape=with_shape)

    async def feed(self, _name: str, *, generation: str, logged: int, budget_s: float) -> Feed:
        queue = await self._ask("feed", budget_s)
        if generation != queue.generation or logged > len(queue.log):
            return Feed(polls=queue.policy, numbers=queue.numbers, events=None)
        return queue.read(logged)

    async def describe(self, name: str, *, budget_s: float) -> Any:
        queue = await self._ask("describe", budget_s)
        return queue_named(name, generation=queue.generation, at_ms=queue.now)

    async def arm_watch(self, _name: str) -> None:
        self.asked["arm_watch"] += 1

    async def arm_standing(self, _name: str) -> None:
        self.asked["arm_standing"] += 1

    async def arm_blocked(self, _name: str) -> None:
        self.asked["arm_blocked"] += 1

    async def withdraw(
        self, _name: str, message_ids: Sequence[str], *, generation: str = "", budget_s: float
    ) -> Sequence[Any]:
        del budget_s
        if self.error is not None:
            raise self.error
        self.withdrawn += message_ids
        self.withdrawn_from.append(generation)
        return []
