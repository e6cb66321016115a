"""What became of messages that nobody named and that all joined the tail, one behind the other.

That is what becomes of most batches, and four facts tell it of all their messages. So nothing is made for each of them
until somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from headwayd.domain.errors import HeadwayError
from headwayd.domain.model import PutCode, PutOutcome


def made_id(generation: str, ticket: int) -> str:
    """The id of a message that nobody named."""
    return f"~{generation}-{ticket}"


class Joined(Sequence[PutOutcome]):
    """Outcomes of `count` messages, of which the first got `ticket` and stands at `position`, in this generation of
    their queue. A part of it is one, too. It has no subclasses, as BareMessages has none."""

    __slots__ = ("_count", "generation", "position", "ticket")

    def __init__(self, generation: str, ticket: int, position: int, count: int) -> None:
        self.generation = generation
        self.ticket = ticket
        self.position = position
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PutOutcome]:
        return map(self._outcome, range(self._count))

    @overload
    def __getitem__(self, at: int) -> PutOutcome: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PutOutcome]: ...

    def __getitem__(self, at: int | slice) -> PutOutcome | Sequence[PutOutcome]:
        if isinstance(at, slice):
            part = range(self._count)[at]
            if part.step != 1:
                return list(map(self._outcome, part))
            return Joined(self.generation, self.ticket + part.start, self.position + part.start, len(part))
        return self._outcome(range(self._count)[at])

    def _outcome(self, i: int) -> PutOutcome:
        ticket = self.ticket + i
        return PutOutcome(PutCode.QUEUED, made_id(self.generation, ticket), ticket, self.position + i)


def errors_of(outcomes: Sequence[PutOutcome]) -> Sequence[HeadwayError]:
    """Why those of the messages were refused that were, in order."""
    if type(outcomes) is Joined:
        return ()
    return [outcome.error for outcome in outcomes if outcome.error is not None]
