"""What those who watch ask: where messages and blocked producers are, and what happened since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headwayd.domain.blocked import BlockedPlaces, BlockedPut
from headwayd.domain.places import MOST_TICKETS, Feed, Places
from headwayd.store import replies, watch_replies
from headwayd.store.asking import Asking
from headwayd.store.packing import Argument

_BLOCKED_NUMBERS_AT = 4


class WatchSteps(Asking):
    """The part of `engine.ports.Store` for watching."""

    async def places(self, queue: str, message_ids: Sequence[str], *, with_shape: bool, budget_s: float) -> Places:
        """Where these messages are, in order, and the whole line, at one instant. From now on what happens is logged
        for 15 s after the last look."""
        reply = await self._ask(
            "places", queue, "1" if with_shape else "0", MOST_TICKETS, *message_ids, budget_s=budget_s
        )
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return watch_replies.places(reply, message_ids)

    async def feed(self, queue: str, *, generation: str, logged: int, budget_s: float) -> Feed:
        """What happened since so many events had been logged."""
        reply = await self._ask("feed", queue, generation, logged, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return watch_replies.feed(reply)

    async def arm_watch(self, queue: str) -> None:
        """Asks to be told of the next change of this queue that those who watch may see."""
        await self._hints.arm_watch(queue)

    async def blocked(
        self, queue: str, producers: Sequence[str], *, again: Sequence[BlockedPut] = (), budget_s: float
    ) -> BlockedPlaces:
        """Where the Puts of these producers stand in the producer line, in order; those of `again` take their places
        anew before, if they have lost them."""
        puts: list[Argument] = []
        for put in again:
            puts += (put.waiter, put.number, put.producer, put.generation)
        reply = await self._ask("blocked", queue, len(producers), *producers, *puts, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return _blocked_places(reply)

    def on_blocked(self, listener: Callable[[str], None]) -> None:
        """Who is told that the producer line has changed."""
        self._hints.blocked.listener = listener

    async def arm_blocked(self, queue: str) -> None:
        """Asks to be told of the next change of this queue's producer line."""
        await self._hints.arm_blocked(queue)


def _blocked_places(reply: Sequence[Any]) -> BlockedPlaces:
    """The reply of blocked.lua, from its status on."""
    positions_at = _BLOCKED_NUMBERS_AT + watch_replies.NUMBERS
    return BlockedPlaces(
        numbers=watch_replies.line_numbers(reply[_BLOCKED_NUMBERS_AT:positions_at]),
        polls=watch_replies.polls(*map(int, reply[1:_BLOCKED_NUMBERS_AT])),
        positions=[int(position) for position in reply[positions_at:]],
    )
