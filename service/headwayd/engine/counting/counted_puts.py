"""Puts whose refusals are counted, as their callers are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwayd.domain.errors import HeadwayError, Reason
from headwayd.domain.joined import errors_of
from headwayd.domain.model import PutOrder, PutOutcome
from headwayd.engine.counting.counts import Counts, add
from headwayd.engine.putting import Putting

# These show that the queue exists.
_OF_A_QUEUE = frozenset({Reason.QUEUE_FULL, Reason.QUEUE_CLOSED, Reason.DUPLICATE_MESSAGE, Reason.ROLE_IN_USE})
# What a stream waits for (`rpc/producing.py`).
_WILL_WAIT = frozenset({Reason.QUEUE_FULL, Reason.ROLE_IN_USE})


class CountedPutting(Putting):
    """All Puts of this process."""

    def __init__(self, *arguments: Any, counts: Counts, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._counts = counts

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """See Putting."""
        try:
            outcomes = await super().put(order, budget_s=budget_s)
        except HeadwayError as error:
            self.note_refused(order.queue, error, len(order.messages))
            raise
        for why in errors_of(outcomes):
            self.note_refused(order.queue, why, 1)
        return outcomes

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        """See Putting. A stream that did not wait for room will, with the same messages: so that is no refusal yet."""
        try:
            outcomes = await super().put_each(order, budget_s=budget_s)
        except HeadwayError as error:
            if order.wait_ms or error.reason not in _WILL_WAIT:
                self.note_refused(order.queue, error, len(order.messages))
            raise
        for why in errors_of(outcomes):
            if order.wait_ms or why.reason not in _WILL_WAIT:
                self.note_refused(order.queue, why, 1)
        return outcomes

    def note_refused(self, queue: str, error: HeadwayError, number: int) -> None:
        """See Putting."""
        reason = error.reason
        counts = self._counts.of(queue) if reason in _OF_A_QUEUE else self._counts.of_known(queue)
        add(counts.refused, reason.name, number)
