"""Leases of one step, as tests make them."""

from __future__ import annotations

from collections.abc import Sequence

from headwayd.domain.columns import FirstDeliveries
from headwayd.domain.leases import LeaseRuns, Run, nonce_of, texts


def run_tokens(generation: bytes, first: int, count: int, random: bytes, attempt: int) -> list[str]:
    """The tokens of so many leases of a generation (as hex), from a ticket on."""
    return texts(Run(bytes.fromhex(generation.decode()), nonce_of(random, attempt), range(first, first + count)))


def first_deliveries(
    number: int, tickets: range, *, payloads: Sequence[bytes] | None = None, put_at_ms: Sequence[int] | None = None
) -> FirstDeliveries:
    """What the step of this number leased, at 1,020 ms."""
    return FirstDeliveries(
        generation="00" * 8,
        tickets=tickets,
        payloads=payloads or [b""] * len(tickets),
        leases=LeaseRuns([Run(bytes(8), nonce_of(number.to_bytes(16), 1), tickets)]),
        put_at_ms=put_at_ms or [0] * len(tickets),
        lease_expires_at_ms=0,
        now_ms=1_020,
    )
