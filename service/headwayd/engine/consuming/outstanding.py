"""What is leased to one stream and not settled, against the credit that its consumer gave.

Times are by the clock of this process. A lease ends here no earlier than in the store, so the credit is never exceeded.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from headwayd.domain.columns import FirstDeliveries, leases_of
from headwayd.domain.consuming import Credit
from headwayd.domain.model import Delivery

OWN_ID_MARK = "~"  # ids made by the service are no part of a message's size
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


class Outstanding:
    """The leases of one stream. `freed` grows whenever there may be more room than before."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self._held: dict[str, int] = {}  # lease: its bytes
        self._bytes = 0
        self._moved: dict[str, float] = {}  # when those lapse that have been extended since they were leased
        self._lapsed: dict[str, int] = {}  # those that its consumer may still take up again
        self._lapses: list[tuple[float, int, Sequence[str]]] = []  # when, and which, but for those moved meanwhile
        self._noted = 0  # leases in all of them
        self._numbers = itertools.count()
        self.freed = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def leases(self) -> list[str]:
        """All of them."""
        return list(self._held)

    @property
    def lapses_at(self) -> float:
        """When the next may lapse."""
        return self._lapses[0][0] if self._lapses else float("inf")

    def give_credit(self, credit: Credit) -> None:
        """Replaces the credit before."""
        self.credit = credit
        self.freed += 1

    def room(self, ending: Iterable[str] = ()) -> Room | None:
        """How much more may be leased once the leases in `ending` are settled; None if that is nothing."""
        ended = self._held.keys() & ending
        count, size = len(self._held) - len(ended), self._bytes - sum(map(self._held.__getitem__, ended))
        messages, most = self.credit.messages - count, self.credit.bytes
        if messages <= 0:
            return None
        if most == 0 or count == 0:
            return Room(messages, most, is_strict=False)
        return Room(messages, most - size, is_strict=True) if most > size else None

    def add(self, deliveries: Sequence[Delivery], lapses_at: float) -> None:
        """Leased to the stream just now."""
        leases = leases_of(deliveries)
        if type(deliveries) is FirstDeliveries and self._held.keys().isdisjoint(leases):
            sizes = list(map(len, deliveries.payloads))
            self._bytes += sum(sizes)
            self._held.update(zip(leases, sizes, strict=False))
        else:
            for delivery in deliveries:
                self._hold(delivery.lease, size_of(delivery), lapses_at)
        self._note_lapse(lapses_at, leases)

    def _hold(self, lease: str, size: int, lapses_at: float) -> None:
        if lease in self._held:
            self._moved[lease] = lapses_at
        self._bytes += size - self._held.get(lease, 0)
        self._held[lease] = size

    def _note_lapse(self, at: float, leases: Sequence[str]) -> None:
        heapq.heappush(self._lapses, (at, next(self._numbers), leases))
        self._noted += len(leases)
        if self._noted > _NOTED_FOR_EACH * len(self._held) + _NOTED_BESIDE:
            self._forget_settled()

    def _forget_settled(self) -> None:
        """Of those whose lapse is noted only what is held stays so."""
        held, moved = self._held, self._moved
        still = [
            (at, number, [lease for lease in leases if lease in held and lease not in moved])
            for at, number, leases in self._lapses
        ]
        together: dict[float, list[str]] = {}
        for lease, at in moved.items():
            together.setdefault(at, []).append(lease)
        self._lapses = [one for one in still if one[2]]
        self._lapses += [(at, next(self._numbers), leases) for at, leases in together.items()]
        heapq.heapify(self._lapses)
        self._noted = len(held)

    def _forget_all(self) -> None:
        """The same where nothing is held."""
        self._lapses.clear()
        self._noted = 0

    def end(self, lease: str) -> None:
        """Settled, or known to be no lease any more."""
        held = self._held.pop(lease, None)
        self._lapsed.pop(lease, None)
        self._moved.pop(lease, None)
        if held is not None:
            self._bytes -= held
            self.freed += 1
        if not self._held:
            self._forget_all()

    def end_all(self, leases: Sequence[str]) -> None:
        """The same for many."""
        if self._lapsed or self._moved:
            for lease in leases:
                self.end(lease)
            return
        before = len(self._held)
        self._bytes -= sum(map(self._held.pop, leases, repeat(0)))
        self.freed += before - len(self._held)
        if not self._held:
            self._forget_all()

    def extend(self, lease: str, lapses_at: float) -> None:
        """Runs on. One that had lapsed counts again; one that is not this stream's is left alone."""
        size = self._held[lease] if lease in self._held else self._lapsed.pop(lease, None)
        if size is not None:
            self._hold(lease, size, lapses_at)
            self._moved[lease] = lapses_at  # also where it had lapsed: it may be noted for other instants, too
            self._note_lapse(lapses_at, [lease])

    def lapse(self, now: float) -> None:
        """Those whose time is over do not count any more."""
        while self._lapses and self._lapses[0][0] <= now:
            noted_at, _, leases = heapq.heappop(self._lapses)
            self._noted -= len(leases)
            for lease in leases:
                if lease in self._held and self._moved.get(lease, noted_at) <= now:
                    size = self._held[lease]
                    self.end(lease)
                    self._lapsed[lease] = size
        while len(self._lapsed) > _MOST_LAPSED:
            del self._lapsed[next(iter(self._lapsed))]
