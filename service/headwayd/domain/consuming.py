"""What a consumer's stream is asked for, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwayd.domain.model import DelayOrder, Delivery, Settlement
from headwayd.domain.places import Progress
from headwayd.domain.standing import Standing


@dataclass(frozen=True, slots=True)
class Credit:
    """How much may be leased to the stream and not settled; 0 messages = nothing new, 0 bytes = no such limit."""

    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOrder:
    """How a stream begins. `lease_ms` 0 means the queue's policy."""

    queue: str
    consumer: str = ""
    lease_ms: int = 0
    credit: Credit = Credit()


@dataclass(frozen=True, slots=True)
class AckOrder:
    """Leases to settle for good."""

    leases: Sequence[str]
    result: bytes = b""


@dataclass(frozen=True, slots=True)
class ExtendOrder:
    """Leases to keep alive. `lease_ms` 0 means the queue's policy."""

    leases: Sequence[str]
    lease_ms: int = 0
    progress: Progress | None = None


ConsumeStep = Credit | AckOrder | DelayOrder | ExtendOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldConsumer:
    """What the stream tells at once: messages leased to it, results in the order asked, its place while it waits, or
    that the queue is closed and nothing is left. `held` is how many leases count against its credit then."""

    deliveries: Sequence[Delivery] = ()
    settled: Sequence[Settlement] = ()
    standing: Standing | None = None
    is_drained: bool = False
    held: int = 0
