"""What those who stand in the consumer line ask. `MessageSteps.get` is how they come to their turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headwayd.domain.hints import PollHints
from headwayd.domain.places import NEAR, LineNumbers
from headwayd.domain.standing import Footings, Standing, Waiter
from headwayd.store import keys, replies, stand_replies, watch_replies
from headwayd.store.asking import DEAR, Asking
from headwayd.store.connections import is_replica
from headwayd.store.link import Link
from headwayd.store.packing import Argument
from headwayd.store.several import ask_each
from headwayd.store.trouble import checked

_FOUND_AT_ONCE = 1_000  # leases that a step looks at
_RELEASED_AT_ONCE = 200  # some milliseconds of the store
_REPLICATION = ("INFO", "replication")
_NOT_WAITED_FOR = PollHints(poll_min_ms=0, poll_max_ms=-1)


class StandSteps(Asking):
    """The part of `engine.ports.Store` for the consumer line."""

    async def stop_standing(self, queue: str, waiter: str, *, keeps_leases: bool = False, budget_s: float) -> None:
        """Gives up a place in the consumer line, and, unless it keeps them, what the waiter's stream still has leased:
        that in steps of bounded size, each within the budget."""
        line = "place" if keeps_leases else "consumers"
        reply = await self._ask("leave", queue, waiter, line, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        if replies.text(reply[1]) == "1":
            await self._release_owned(queue, waiter, budget_s=budget_s)

    async def keep_place(
        self, queue: str, waiter: Waiter, place: str, hints: PollHints | None, *, budget_s: float
    ) -> tuple[Standing, LineNumbers]:
        """Keeps a waiter's place, under this name, while nobody is there for it: until poll_max, or, without hints, for
        the policy's `place_grace` only. What its stream still has leased goes back as by `stop_standing`."""
        window = hints or _NOT_WAITED_FOR
        reply = await self._ask(
            "keep_place",
            queue,
            waiter.name,
            place,
            waiter.number,
            window.poll_min_ms,
            window.poll_max_ms,
            waiter.generation,
            budget_s=budget_s,
        )
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        self._note_due(queue, reply[1], reply[2])
        if replies.text(reply[4]) == "1":
            await self._release_owned(queue, waiter.name, budget_s=budget_s)
        numbers = watch_replies.line_numbers(reply[5:])
        standing = Standing(
            place=place,
            position=int(reply[3]),
            length=numbers.consumers_waiting,
            limit=numbers.limit,
            hints=window,
        )
        return standing, numbers

    async def footings(self, queue: str, waiters: Sequence[Waiter], *, stand_again: bool, budget_s: float) -> Footings:
        """How these stand, in order; with `stand_again` those who had a number take their places anew if they have lost
        them in this life of the queue."""
        rows: list[Argument] = []
        for waiter in waiters:
            rows += (waiter.name, waiter.number if stand_again else 0, waiter.generation)
        reply = await self._ask("stands", queue, NEAR, *rows, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return stand_replies.footings(reply)

    async def drop_absent(self, queue: str, *, spared: Collection[str] = (), budget_s: float) -> None:
        """Ends what processes that are gone left standing in line, and gives back what their streams owned, in steps of
        bounded size, each within the budget; those that are `spared` are taken for present."""
        reply = await self._ask("drop_absent", queue, *spared, budget_s=budget_s)
        if replies.missing(reply[0], queue) is not None:
            return
        self._note_due(queue, reply[1], reply[2])
        if replies.text(reply[3]) == "1":
            await self._release_owned(queue, spared=spared, budget_s=budget_s)

    async def _release_owned(
        self, queue: str, waiter: str = "", *, spared: Collection[str] = (), budget_s: float
    ) -> None:
        """Gives back what the stream of this waiter owns, or those of all processes that are gone but the `spared`."""
        tickets = await self._owned(queue, waiter, spared, budget_s=budget_s)
        # The last first: so each step goes to the head before the ones before, and none of these has to be moved.
        for end in range(len(tickets), 0, -_RELEASED_AT_ONCE) or (0,):
            part = tickets[max(end - _RELEASED_AT_ONCE, 0) : end]
            words: tuple[Argument, ...] = (waiter, len(spared), *spared, *part)
            reply = await self._ask("release_absent", queue, *words, budget_s=budget_s, items=DEAR * len(part))
            if replies.missing(reply[0], queue) is not None:
                return
            self._note_due(queue, reply[1], reply[2])

    async def _owned(self, queue: str, waiter: str, spared: Collection[str], *, budget_s: float) -> Sequence[int]:
        """The tickets of that, in order."""
        tickets: set[int] = set()
        cursor: str | None = ""
        while cursor is not None:
            reply = await self._ask(
                "find_absent", queue, cursor, waiter, *spared, budget_s=budget_s, items=_FOUND_AT_ONCE
            )
            if replies.missing(reply[0], queue) is not None:
                break
            cursor = replies.text(reply[1]) or None
            tickets.update(map(int, reply[2:]))
        return sorted(tickets)

    async def processes(self, *, budget_s: float) -> frozenset[str]:
        """The names of all processes that listen to the store now; of several servers, to any of those that answer.
        Where the store's name has come to lead to another server, this one goes over to that."""
        channel = self._channels + keys.WAKE_CHANNEL
        pattern = keys.literal_pattern(channel) + "*"
        was_heard = self._hints.are_heard
        heard = await ask_each(self._servers.links, lambda link: self._listeners(link, pattern), within_s=budget_s)
        names = frozenset(replies.text(name)[len(channel) :] for names in heard for name in names)
        is_heard = was_heard and self._hints.are_heard  # all the while
        if is_heard and self._process not in names and not self._servers.is_cluster:
            # It listens to another server than it asks. Which one the name leads to is not known: both go there now.
            self._servers.links[0].drop_connections()
            self._hints.renew()
        return names

    async def _listeners(self, link: Link, pattern: str) -> list[bytes]:
        """The channels. A server that has become a replica may not be the one any more that the name leads to, and
        closes nothing."""
        look = ("PUBSUB", "CHANNELS", pattern)
        channels, *replication = await link.commands(look, *(() if self._servers.is_cluster else (_REPLICATION,)))
        if any(map(is_replica, replication)):
            link.drop_connections()
        found: list[bytes] = checked(channels)
        return found

    def on_standing(self, listener: Callable[[str], None]) -> None:
        """Who is told that the consumer line has changed."""
        self._hints.standing.listener = listener

    async def arm_standing(self, queue: str) -> None:
        """Asks to be told of the next change of this queue's consumer line."""
        await self._hints.arm_standing(queue)
