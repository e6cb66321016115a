"""Messages that are nothing but their payloads.

Most are. So a batch of them is kept as its payloads, and no message is made of one until somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from headwayd.domain.model import NewMessage


class BareMessages(Sequence[NewMessage]):
    """Messages with these payloads, each of `size` bytes, if that is known of all; else it is 0. A part of it is one,
    too. It has no subclasses: whether something is one is asked by `type(…) is`, because `isinstance` asks an abstract
    class, which a Put of one message would notice."""

    __slots__ = ("payloads", "size")

    def __init__(self, payloads: Sequence[bytes], size: int = 0) -> None:
        self.payloads = payloads
        self.size = size

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[NewMessage]:
        return map(NewMessage, self.payloads)

    @overload
    def __getitem__(self, at: int) -> NewMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[NewMessage]: ...

    def __getitem__(self, at: int | slice) -> NewMessage | Sequence[NewMessage]:
        if isinstance(at, slice):
            return BareMessages(self.payloads[at], self.size)
        return NewMessage(self.payloads[at])


def all_of(batches: Sequence[Sequence[NewMessage]]) -> Sequence[NewMessage]:
    """The messages of all batches, in order."""
    if len(batches) == 1:
        return batches[0]
    payloads = [batch.payloads for batch in batches if type(batch) is BareMessages]
    if len(payloads) == len(batches):
        sizes = {batch.size for batch in batches if type(batch) is BareMessages}
        return BareMessages(list(chain.from_iterable(payloads)), sizes.pop() if len(sizes) == 1 else 0)
    return list(chain.from_iterable(batches))


def is_for_now(messages: Sequence[NewMessage]) -> bool:
    """Whether none has an instant of its own, which may be too far ahead."""
    return type(messages) is BareMessages or not any(message.not_before_at_ms for message in messages)


def payload_bytes(messages: BareMessages) -> int:
    """How many bytes their payloads have."""
    return messages.size * len(messages.payloads) or sum(map(len, messages.payloads))


def all_bytes(messages: Sequence[NewMessage]) -> int:
    """How many bytes messages have in their payloads, headers, and the ids they were given."""
    if type(messages) is BareMessages:
        return payload_bytes(messages)
    return sum(len(message.payload) + len(message.headers) + len(message.id) for message in messages)
