"""What those who watch ask: where messages are, and what happened since."""

from __future__ import annotations

from collections.abc import Sequence

from headwayd.domain.places import Feed, Places
from headwayd.store import replies
from headwayd.store.asking import Asking

_MOST_TICKETS = 20_000


class WatchSteps(Asking):
    """The part of `engine.ports.Store` for watching."""

    async def places(self, queue: str, message_ids: Sequence[str], *, with_shape: bool, budget_s: float) -> Places:
        """Where these messages are, in order, and the whole line, at one instant. From now on what happens is logged
        for 15 s after the last look."""
        reply = await self._ask(
            "places", queue, "1" if with_shape else "0", _MOST_TICKETS, *message_ids, budget_s=budget_s
        )
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.places(reply, message_ids)

    async def feed(self, queue: str, *, generation: str, logged: int, budget_s: float) -> Feed:
        """What happened since so many events had been logged."""
        reply = await self._ask("feed", queue, generation, logged, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.feed(reply)

    async def arm_watch(self, queue: str) -> None:
        """Asks to be told of the next change of this queue that those who watch may see."""
        await self._hints.arm_watch(queue)
