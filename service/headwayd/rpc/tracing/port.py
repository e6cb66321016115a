"""What the traced calls need of whoever makes the spans. `telemetry/jobs.py` is the one that does; rpc and telemetry do
not know each other.

`operation` is the RPC's name, `caller` the context of the call's metadata. Instants in `_ns` are nanoseconds since 1970
by this machine's clock, those in `_ms` are milliseconds by the store's. Nothing here raises or blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headwayd.domain.model import Settlement
from headwayd.domain.tracing import Carried, Handed


class PutSpan(Protocol):
    """A batch that is being put. Ends with `done` or `failed`, once."""

    @property
    def carries(self) -> Carried | None:
        """What messages that carry no context are given; None: nothing."""

    @property
    def is_for_bare(self) -> bool:
        """Whether messages that are only a payload are given it, too."""

    def done(self, results: Sequence[tuple[str, int]], *, deduplicated: int, refused: int) -> None:
        """What became of the messages: their ids and positions (0: not in line), in order."""

    def failed(self, reason: str) -> None:
        """Nothing was put, or nobody knows."""


class JobTracer(Protocol):
    """Makes the spans of jobs."""

    def put(self, operation: str, queue: str, *, caller: Carried | None, carried: Sequence[Carried | None]) -> PutSpan:
        """A batch begins to be put, with what each of its messages carries."""

    def handed(
        self,
        operation: str,
        queue: str,
        messages: Sequence[Handed],
        *,
        began_ns: int | None,
        caller: Carried | None,
        places: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A call hands out these messages, having waited since `began_ns` (None: since they were leased), at these
        places of the consumer line (instant in ms, position)."""

    def settled(
        self, operation: str, queue: str, settlements: Sequence[Settlement], *, began_ns: int, caller: Carried | None
    ) -> None:
        """A call settled these leases."""

    def failed(self, operation: str, queue: str, reason: str, *, began_ns: int, caller: Carried | None) -> None:
        """A call that takes or settles messages failed."""

    def ended(self, leases: Iterable[str]) -> None:
        """The stream that these were leased to has ended: those that were not settled went back."""

    def moved(self, queue: str, message_id: str, at_ms: int, position: int) -> None:
        """A waiting message stood at this position then."""

    def now_ns(self) -> int:
        """The machine's clock."""
