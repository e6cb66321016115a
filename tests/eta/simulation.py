"""A queue, its workers and those who watch it, in made-up time: what an estimator is shown, and how long each really
waited. Seeded, and knows nothing of estimators.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from headwayd.domain.places import LineNumbers

SHORTEST_GAP_S = 0.05  # between two looks at a busy queue
LONGEST_GAP_S = 10.0  # between two looks at an idle one
SHOWN_EVERY_S = 5.0  # to those whose position does not change
EVERY_STEP_TO = 20  # positions up to this are shown at every step, those beyond at steps of a tenth
ASKS_AFTER_S = 0.002  # from the end of one job until a worker asks for the next


@dataclass(frozen=True, slots=True)
class Job:
    """A message: when it is put, how long a worker of speed 1 takes, and how often it fails before that."""

    put_at: float
    work_s: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """Takes jobs from `joins_at` until `leaves_at`. One that crashes leaves its last job to lapse, half done."""

    joins_at: float
    leaves_at: float = float("inf")
    speed: float = 1.0
    is_crashing: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """What happens to a queue. `slowness` is how many times longer than said a job takes if it begins then."""

    name: str
    jobs: Sequence[Job]
    workers: Sequence[Worker]
    slowness: Callable[[float], float] = lambda _at: 1.0
    limit: int = 0
    lease_s: float = 30.0
    rest_s: float = ASKS_AFTER_S


@dataclass(slots=True)
class Lease:
    """A job being worked on."""

    number: int
    began_at: float
    ends: bool  # rather than lapses


@dataclass(slots=True)
class State:
    """All that there is to know about the queue at an instant, besides what is still to come."""

    at: float = 0.0
    line: deque[int] = field(default_factory=deque)
    leases: dict[int, Lease] = field(default_factory=dict)  # by worker
    idle: deque[int] = field(default_factory=deque)  # workers, in order of asking
    present: int = 0  # workers
    left: set[int] = field(default_factory=set)  # workers who are gone, or end their last job
    departures: int = 0
    acked: int = 0
    tail: int = 0  # jobs that were put
    head: int = 0  # jobs that left the line at least once
    ended_count: int = 0
    ended_work_s: float = 0.0  # of all history


@dataclass(slots=True)
class Showing:
    """What one who waits is shown at one instant: the position, and what became of it."""

    number: int
    at: float
    position: int


class Happens(IntEnum):
    PUT = 0
    JOIN = 1
    LEAVE = 2
    END = 3
    ASK = 4
    LOOK = 5
    SHOW = 6


class Simulation:
    """Plays a trace. `looks()` yields the state at each look with those who are shown something then; `leased_at` is,
    after the end, when each job was first leased."""

    def __init__(self, trace: Trace, *, watched_every: int) -> None:
        self.trace = trace
        self.state = State()
        self.leased_at: dict[int, float] = {}
        self._failed: dict[int, int] = {}
        self._watched_every = watched_every
        self._events: list[tuple[float, int, Happens, int]] = []
        self._sequence = 0
        self._looked_at = -LONGEST_GAP_S
        self._look_at = 0.0
        self._shown: dict[int, tuple[float, int]] = {}  # by job: when, and at which position
        for number, job in enumerate(trace.jobs):
            self._push(job.put_at, Happens.PUT, number)
        for number, worker in enumerate(trace.workers):
            self._push(worker.joins_at, Happens.JOIN, number)
            if worker.leaves_at < float("inf"):
                self._push(worker.leaves_at, Happens.LEAVE, number)
        self._push(0.0, Happens.LOOK, 0)

    def numbers(self) -> LineNumbers:
        """What the store tells about the queue now."""
        state = self.state
        return LineNumbers(
            generation="1",
            at_ms=round(state.at * 1_000),
            logged=0,
            head=state.head,
            tail=state.tail,
            length=len(state.line),
            leased=len(state.leases),
            limit=self.trace.limit,
            departures=state.departures,
            acked=state.acked,
            consumers_waiting=len(state.idle),
            producers_waiting=0,
            is_paused=False,
            is_closed=False,
            delayed=0,
            put_rate=0.0,
            ack_rate=0.0,
            consumers_ready=len(state.idle),
            consumers_awaited=0,
        )

    def looks(self) -> Iterator[tuple[State, Sequence[Showing]]]:
        """Plays on from look to look, until every job was leased."""
        state, jobs = self.state, len(self.trace.jobs)
        while self._events and len(self.leased_at) < jobs:
            at, _, what, number = heapq.heappop(self._events)
            state.at = at
            if what is Happens.LOOK:
                if at != self._look_at:
                    continue  # an earlier one came between
                self._looked_at = at
                self._look_soon(at + LONGEST_GAP_S)
                yield state, self._showings()
                continue
            self._play(what, number)
            self._grant()
            self._look_soon(max(at, self._looked_at + SHORTEST_GAP_S))

    def _play(self, what: Happens, number: int) -> None:
        state = self.state
        if what is Happens.PUT:
            state.tail += 1
            state.line.append(number)
        elif what is Happens.JOIN:
            state.present += 1
            state.idle.append(number)
        elif what is Happens.ASK:
            if number not in state.left:
                state.idle.append(number)
        elif what is Happens.LEAVE:
            self._leave(number)
        elif what is Happens.END:
            self._end(number)

    def _leave(self, number: int) -> None:
        state, worker = self.state, self.trace.workers[number]
        state.present -= 1
        state.left.add(number)
        if number in state.idle:
            state.idle.remove(number)
        elif worker.is_crashing and number in state.leases:
            lease = state.leases[number]
            lease.ends = False
            self._push(lease.began_at + self.trace.lease_s, Happens.END, number)

    def _end(self, number: int) -> None:
        state = self.state
        lease = state.leases.get(number)
        if lease is None:
            return  # lapsed before
        if not lease.ends and state.at < lease.began_at + self.trace.lease_s:
            return  # the worker is gone
        del state.leases[number]
        job = self.trace.jobs[lease.number]
        if lease.ends and self._failed.get(lease.number, 0) >= job.failures:
            took_s = state.at - lease.began_at
            state.acked += 1
            state.ended_count += 1
            state.ended_work_s += took_s
        else:
            self._failed[lease.number] = self._failed.get(lease.number, 0) + 1
            state.line.appendleft(lease.number)
        if number not in state.left:
            self._push(state.at + self.trace.rest_s, Happens.ASK, number)

    def _grant(self) -> None:
        state = self.state
        while state.line and state.idle and not (self.trace.limit and len(state.leases) >= self.trace.limit):
            worker, number = state.idle.popleft(), state.line.popleft()
            state.departures += 1
            if number not in self.leased_at:
                self.leased_at[number] = state.at
                state.head += 1
            self._shown.pop(number, None)
            state.leases[worker] = Lease(number, state.at, ends=True)
            work_s = self.trace.jobs[number].work_s / self.trace.workers[worker].speed * self.trace.slowness(state.at)
            self._push(state.at + work_s, Happens.END, worker)

    def _showings(self) -> Sequence[Showing]:
        showings, state = [], self.state
        for index, number in enumerate(state.line):
            if number % self._watched_every or number in self.leased_at:
                continue
            position = index + 1
            shown_at, shown = self._shown.get(number, (float("-inf"), 0))
            is_step = position != shown and (
                position <= EVERY_STEP_TO or abs(position - shown) >= 0.1 * max(position, shown)
            )
            if is_step or state.at - shown_at >= SHOWN_EVERY_S:
                self._shown[number] = (state.at, position)
                showings.append(Showing(number, state.at, position))
        return showings

    def _look_soon(self, at: float) -> None:
        if not self._looked_at < self._look_at <= at:
            self._look_at = at
            self._push(at, Happens.LOOK, 0)

    def _push(self, at: float, what: Happens, number: int) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, what, number))
