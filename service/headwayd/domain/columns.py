"""What a step of the store did alike with many messages or leases: kept by columns, and made one by one only for who
looks at one. Most batches are such, and to make an object for each took a good part of what a message cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add
from typing import overload

from headwayd.domain.joined import made_id
from headwayd.domain.leases import LeaseRuns
from headwayd.domain.model import Delivery, Settled, Settlement


class FirstDeliveries(Sequence[Delivery]):
    """Messages that one step leased to one caller, each for the first time.

    `given_ids` are in UTF-8, b"" for a message that nobody named, and `headers` encoded; each of these two is empty
    where no message has any. `put_at_ms` is 0 where nobody knows; `now_ms` when they were leased; times are by the
    store's clock.
    It has no subclasses, as BareMessages has none: whether something is one is asked by `type(…) is`.
    """

    __slots__ = (
        "generation",
        "given_ids",
        "headers",
        "lease_expires_at_ms",
        "leases",
        "now_ms",
        "payloads",
        "put_at_ms",
        "tickets",
    )
    attempt = 1

    def __init__(
        self,
        *,
        generation: str,
        tickets: range,
        payloads: Sequence[bytes],
        leases: LeaseRuns,
        put_at_ms: Sequence[int],
        lease_expires_at_ms: int,
        now_ms: int,
        given_ids: Sequence[bytes] = (),
        headers: Sequence[bytes] = (),
    ) -> None:
        self.generation = generation
        self.tickets = tickets
        self.payloads = payloads
        self.leases = leases
        self.put_at_ms = put_at_ms
        self.lease_expires_at_ms = lease_expires_at_ms
        self.now_ms = now_ms
        self.given_ids = given_ids
        self.headers = headers

    @property
    def sizes(self) -> list[int]:
        """What each takes of a credit: the bytes of its payload, its headers and an id that was given."""
        sizes = list(map(len, self.payloads))
        for column in (self.given_ids, self.headers):
            if column:
                sizes = list(map(add, sizes, map(len, column)))
        return sizes

    def waited_ms(self, put_at_ms: int) -> int:
        """How long one that was put then has waited."""
        return max(0, self.now_ms - put_at_ms)

    def __len__(self) -> int:
        return len(self.tickets)

    def __iter__(self) -> Iterator[Delivery]:
        none = [b""] * len(self)
        columns = self.leases, self.put_at_ms, self.given_ids or none, self.headers or none
        for ticket, payload, lease, put_at_ms, given_id, headers in zip(
            self.tickets, self.payloads, *columns, strict=True
        ):
            yield Delivery(
                id=given_id.decode() or made_id(self.generation, ticket),
                payload=payload,
                headers=headers,
                lease=lease,
                lease_expires_at_ms=self.lease_expires_at_ms,
                attempt=self.attempt,
                ticket=ticket,
                put_at_ms=put_at_ms or None,
                waited_ms=self.waited_ms(put_at_ms) if put_at_ms else None,
            )

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> FirstDeliveries: ...
    def __getitem__(self, at: int | slice) -> Delivery | FirstDeliveries:
        if isinstance(at, int):
            one = range(len(self))[at]
            [delivery] = self[one : one + 1]
            return delivery
        return FirstDeliveries(
            generation=self.generation,
            tickets=self.tickets[at],
            payloads=self.payloads[at],
            leases=self.leases[at],
            put_at_ms=self.put_at_ms[at],
            lease_expires_at_ms=self.lease_expires_at_ms,
            now_ms=self.now_ms,
            given_ids=self.given_ids[at],
            headers=self.headers[at],
        )


class FirstAcks(Sequence[Settlement]):
    """Leases that were all acked, none of whose messages has ever failed. It has no subclasses, either."""

    __slots__ = ("leases",)

    def __init__(self, leases: Sequence[str]) -> None:
        self.leases = leases

    def __len__(self) -> int:
        return len(self.leases)

    def __iter__(self) -> Iterator[Settlement]:
        return map(Settlement, self.leases, repeat(Settled.ACKED))

    @overload
    def __getitem__(self, at: int) -> Settlement: ...
    @overload
    def __getitem__(self, at: slice) -> FirstAcks: ...
    def __getitem__(self, at: int | slice) -> Settlement | FirstAcks:
        if isinstance(at, int):
            return Settlement(self.leases[at], Settled.ACKED)
        return FirstAcks(self.leases[at])


def leases_of(deliveries: Sequence[Delivery]) -> Sequence[str]:
    """The leases of all, in order."""
    if type(deliveries) is FirstDeliveries:
        return deliveries.leases
    return [delivery.lease for delivery in deliveries]


def last_expiry_ms(deliveries: Sequence[Delivery]) -> int:
    """When the last of the leases lapses; there must be one."""
    if type(deliveries) is FirstDeliveries:
        return deliveries.lease_expires_at_ms
    return max(delivery.lease_expires_at_ms for delivery in deliveries)
