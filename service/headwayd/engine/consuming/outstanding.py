"""What is leased to one stream and not settled, against the credit that its consumer gave.

Most leases come in runs, and are acked as they came. So runs are held as they are, and what is acked of them from their
start on is cut off. One of which anything else is asked is taken to pieces, and its leases are held one by one.

Times are by the clock of this process. A lease ends here no earlier than in the store, so the credit is never exceeded;
but one that an ordinary call extends may end here while it goes on there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from headwayd.domain.columns import FirstDeliveries, leases_of
from headwayd.domain.consuming import Credit
from headwayd.domain.leases import LeaseRuns, Run, steps_of, texts
from headwayd.domain.model import OWN_ID_MARK, Delivery

_MOST_LAPSED = 10_000
_NOTED_FOR_EACH, _NOTED_BESIDE = 3, 300  # leases whose lapse is noted, for each that is held, and beside


@dataclass(frozen=True, slots=True)
class Room:
    """How much more may be leased. `bytes` 0 = no limit; it is strict, so that not even one larger message is given, if
    something is outstanding."""

    messages: int
    bytes: int
    is_strict: bool


def size_of(delivery: Delivery) -> int:
    """What a message takes of a credit: payload, headers and an id that was given."""
    given_id = 0 if delivery.id.startswith(OWN_ID_MARK) else len(delivery.id.encode())
    return len(delivery.payload) + len(delivery.headers) + given_id


class _HeldRun:
    """A run of leases, and how many bytes the message of each has."""

    __slots__ = ("run", "sizes")

    def __init__(self, run: Run, sizes: Sequence[int]) -> None:
        self.run = run
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.run.tickets)

    def before(self, run: Run) -> int | None:
        """How many leases it has from its start to the end of this run, if that begins with it; None if it does not,
        or goes on behind it."""
        own, other = self.run, run.tickets
        is_start = other.start == own.tickets.start and other.stop <= own.tickets.stop
        return len(other) if is_start and own[:2] == run[:2] else None

    def cut(self, count: int) -> None:
        """Holds so many less, from the first on."""
        self.run = self.run._replace(tickets=self.run.tickets[count:])
        self.sizes = self.sizes[count:]


class Outstanding:
    """The leases of one stream. `freed` grows whenever there may be more room than before, and `taken_up_count` when
    there is less though nothing was leased."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self._runs: dict[str, _HeldRun] = {}  # by their steps
        self._held: dict[str, int] = {}  # all other leases: their bytes
        self._count = 0  # leases of runs
        self._bytes = 0  # of all
        self._moved: dict[str, float] = {}  # when those lapse that have been extended since they were leased
        self._lapsed: dict[str, int] = {}  # those that its consumer may still take up again
        self._lapses: list[tuple[float, int, Sequence[str]]] = []  # when, and which, but for those moved meanwhile
        self._noted = 0  # leases in all of them
        self._numbers = itertools.count()
        self.freed = 0
        self.taken_up_count = 0  # leases that had lapsed
        self.has_forgotten = False  # some of those that have lapsed as far as is known here

    def __len__(self) -> int:
        return len(self._held) + self._count

    @property
    def leases(self) -> list[str]:
        """All of them."""
        return [*self._held, *itertools.chain.from_iterable(texts(one.run) for one in self._runs.values())]

    @property
    def lapsed(self) -> list[str]:
        """Those that have lapsed as far as is known here, but for those that are forgotten."""
        return list(self._lapsed)

    @property
    def lapses_at(self) -> float:
        """When the next may lapse."""
        return self._lapses[0][0] if self._lapses else float("inf")

    def give_credit(self, credit: Credit) -> None:
        """Replaces the credit before."""
        self.credit = credit
        self.freed += 1

    def room(self, ending: Sequence[str] = ()) -> Room | None:
        """How much more may be leased once the leases in `ending` are settled; None if that is nothing."""
        count, size = len(self), self._bytes
        if (starts := self._starts(ending)) is not None:
            count -= len(ending)
            size -= sum(sum(held.sizes[:part]) for held, part in starts.values())
        elif ending:
            self._take_apart(ending)
            ended = self._held.keys() & ending
            count, size = count - len(ended), size - sum(map(self._held.__getitem__, ended))
        messages, most = self.credit.messages - count, self.credit.bytes
        if messages <= 0:
            return None
        if most == 0 or count == 0:
            return Room(messages, most, is_strict=False)
        return Room(messages, most - size, is_strict=True) if most > size else None

    def add(self, deliveries: Sequence[Delivery], lapses_at: float) -> None:
        """Leased to the stream just now."""
        leases = leases_of(deliveries)
        if type(leases) is not LeaseRuns or self._held or any(run.step in self._runs for run in leases.runs):
            self._take_apart(leases)
            leases = list(leases)
        if self._lapsed:  # one that is told again after all has not
            for lease in leases:
                self._lapsed.pop(lease, None)
        if type(deliveries) is FirstDeliveries and (not self._held or self._held.keys().isdisjoint(leases)):
            sizes = deliveries.sizes
            self._bytes += sum(sizes)
            if type(leases) is LeaseRuns:
                [run] = leases.runs
                self._runs[run.step] = _HeldRun(run, sizes)
                self._count += len(run.tickets)
            else:
                self._held.update(zip(leases, sizes, strict=True))
        else:
            for delivery in deliveries:
                self._hold(delivery.lease, size_of(delivery), lapses_at)
        self._note_lapse(lapses_at, leases)

    def _starts(self, leases: Sequence[str]) -> dict[str, tuple[_HeldRun, int]] | None:
        """The runs that begin with these, by step, and how many of the leases of each they are; None where that is not
        all that they are."""
        if type(leases) is not LeaseRuns:
            return None
        starts: dict[str, tuple[_HeldRun, int]] = {}
        for run in leases.runs:
            step = run.step
            held = self._runs.get(step)
            count = None if held is None else held.before(run)
            if held is None or count is None or step in starts:
                return None
            starts[step] = held, count
        return starts

    def _take_apart(self, leases: Iterable[str]) -> None:
        """From now on the runs that have any of these are held lease by lease."""
        if not self._runs:
            return
        for step in steps_of(leases).keys() & self._runs.keys():
            held = self._runs.pop(step)
            self._count -= len(held)
            self._held.update(zip(texts(held.run), held.sizes, strict=True))

    def _hold(self, lease: str, size: int, lapses_at: float) -> None:
        if lease in self._held:
            self._moved[lease] = lapses_at
        self._bytes += size - self._held.get(lease, 0)
        self._held[lease] = size

    def _note_lapse(self, at: float, leases: Sequence[str]) -> None:
        heapq.heappush(self._lapses, (at, next(self._numbers), leases))
        self._noted += len(leases)
        if self._noted > _NOTED_FOR_EACH * len(self) + _NOTED_BESIDE:
            self._forget_settled()

    def _forget_settled(self) -> None:
        """Of those whose lapse is noted only what is held stays so."""
        still = [(at, number, self._still_due(leases)) for at, number, leases in self._lapses]
        together: dict[float, list[str]] = {}
        for lease, at in self._moved.items():
            together.setdefault(at, []).append(lease)
        self._lapses = [one for one in still if one[2]]
        self._lapses += [(at, next(self._numbers), leases) for at, leases in together.items()]
        heapq.heapify(self._lapses)
        self._noted = len(self)

    def _still_due(self, leases: Sequence[str]) -> Sequence[str]:
        """Those of some that were noted together that are held, and have not been extended."""
        if type(leases) is LeaseRuns:
            whole = [one.run for run in leases.runs if (one := self._runs.get(run.step)) is not None]
            if whole or not self._held:
                return LeaseRuns(whole)
        held, moved = self._held, self._moved
        return [lease for lease in leases if lease in held and lease not in moved]

    def _forget_all(self) -> None:
        """The same where nothing is held."""
        self._lapses.clear()
        self._noted = 0

    def end(self, lease: str) -> None:
        """Settled, or known to be no lease any more."""
        self._take_apart([lease])
        held = self._held.pop(lease, None)
        self._lapsed.pop(lease, None)
        self._moved.pop(lease, None)
        if held is not None:
            self._bytes -= held
            self.freed += 1
        if not len(self):
            self._forget_all()

    def end_all(self, leases: Sequence[str]) -> None:
        """The same for many."""
        before = len(self)
        if (starts := self._starts(leases)) is not None:
            for step, (held, count) in starts.items():
                self._bytes -= sum(held.sizes[:count])
                self._count -= count
                held.cut(count)
                if not len(held):
                    del self._runs[step]
        elif self._lapsed or self._moved:
            for lease in leases:
                self.end(lease)
            return
        else:
            self._take_apart(leases)
            self._bytes -= sum(map(self._held.pop, leases, repeat(0)))
        self.freed += before - len(self)
        if not len(self):
            self._forget_all()

    def extend(self, lease: str, lapses_at: float) -> None:
        """Runs on. One that had lapsed counts again; one that is not this stream's is left alone."""
        self._take_apart([lease])
        size = self._held[lease] if lease in self._held else self._lapsed.pop(lease, None)
        if size is not None:
            self.taken_up_count += lease not in self._held
            self._hold(lease, size, lapses_at)
            self._moved[lease] = lapses_at  # also where it had lapsed: it may be noted for other instants, too
            self._note_lapse(lapses_at, [lease])

    def lapse(self, now: float) -> None:
        """Those whose time is over do not count any more."""
        while self._lapses and self._lapses[0][0] <= now:
            noted_at, _, leases = heapq.heappop(self._lapses)
            self._noted -= len(leases)
            self._take_apart(leases)
            for lease in leases:
                if lease in self._held and self._moved.get(lease, noted_at) <= now:
                    size = self._held[lease]
                    self.end(lease)
                    self._lapsed[lease] = size
        while len(self._lapsed) > _MOST_LAPSED:
            del self._lapsed[next(iter(self._lapsed))]
            self.has_forgotten = True
