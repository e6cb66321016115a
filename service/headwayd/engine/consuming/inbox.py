"""What a stream's consumer asked for, read ahead a little: so much that its acks can be done together, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from headwayd.domain.consuming import AckOrder, ConsumeStep
from headwayd.domain.leases import all_leases
from headwayd.engine.read_ahead import ReadAhead

_MOST_UNDONE = 16  # steps; then the consumer is held back


class Inbox(ReadAhead[ConsumeStep]):
    """The steps of one stream. `on_news` is called when there is one more, or when there will be no more."""

    def __init__(self, steps: AsyncIterator[ConsumeStep], on_news: Callable[[], None]) -> None:
        super().__init__(steps, most=_MOST_UNDONE, on_news=on_news)

    def take_more(self, ack: AckOrder, most: int) -> AckOrder:
        """This ack together with those right behind it, at most so many leases in all. Those with a result of their
        own stay."""
        parts, count = [ack.leases], len(ack.leases)
        while isinstance(behind := self.peek(), AckOrder) and not behind.result:
            count += len(behind.leases)
            if count > most:
                break
            parts.append(behind.leases)
            self.take()
        return AckOrder(all_leases(parts))
