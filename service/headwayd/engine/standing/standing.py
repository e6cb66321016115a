"""One stream in the consumer line, from its first place to its end. Whatever ends it, place and leases are given up."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from headwayd.domain.errors import HeadwayError, QueueDeleted, QueueDrained
from headwayd.domain.hints import poll_hints
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.domain.model import GetOrder
from headwayd.domain.places import NEAR
from headwayd.domain.standing import Standing as Place
from headwayd.domain.standing import StandOrder, ToldOver, ToldPlace, ToldStander, ToldTurn
from headwayd.engine.consumers import Consumers
from headwayd.engine.getting import new_place
from headwayd.engine.ports import GetStep
from headwayd.engine.standing.follower import Follower
from headwayd.engine.standing.stance import Stance
from headwayd.engine.tasks import Spawn
from headwayd.engine.waking import Wake
from headwayd.engine.watching.estimates import Estimates
from headwayd.engine.watching.telling import TRUE_FOR_S

_FIRST_LOOK_S = 0.5  # the first place waits for it, and is true for a second
_SHORTEST_CHECK_S = 5.0
_CHECKS_PER_S = 5  # of all queues
_LEAVING_S = 2.0  # the end of a stream waits so long for the store to know of it, no longer


class Standing:
    """All such streams of this process."""

    def __init__(
        self,
        consumers: Consumers,
        spawn: Spawn,
        *,
        max_bytes: int,
        estimates: Estimates,
        note_lag: Callable[[float], None] | None = None,
    ) -> None:
        self._consumers = consumers
        self._spawn = spawn
        self._max_bytes = max_bytes
        self._estimates = estimates
        self._note_lag = note_lag
        self._followers: dict[str, Follower] = {}

    def __len__(self) -> int:
        return sum(len(follower) for follower in self._followers.values())

    @property
    def queues(self) -> list[str]:
        """Those on which a stream stands, or holds something."""
        return list(self._followers)

    def kick(self, queue: str) -> None:
        """The line of this queue may have changed."""
        if queue in self._followers:
            self._followers[queue].kick()

    def wakes(self) -> Iterator[Wake]:
        """By which each who follows a line now is kicked: any may have changed."""
        return (follower.kick for follower in tuple(self._followers.values()))

    async def stand(self, order: StandOrder, *, budget_s: float) -> AsyncGenerator[ToldStander, None]:
        """Tells places, then the turn; and so on, if it keeps standing. Ends when the turn is over, or when there will
        never be one. Raises what else the first try does; PlaceLost if the place to come back to is no more."""
        consumer = self._consumers.enter(
            self._order(order), budget_s=STORE_BUDGET_S, waits=True, owns=True, keeps=order.keeps_standing
        )
        consumer.place = order.place or new_place()
        try:
            first: GetStep | None = await self._consumers.first_try(consumer, budget_s)
        except QueueDrained:
            yield ToldOver(is_deleted=False)
            return
        stance = Stance(consumer)
        follower = self.follower(order.queue)
        follower.join(stance)
        has_left = False  # the line: the last turn is over, and there will be no other
        try:
            while True:
                if first is not None and first.deliveries:
                    step = first
                    consumer.given.set_result(step)
                else:
                    async with aclosing(self._until_turn(stance, follower, first)) as places:
                        async for place in places:
                            yield place
                    step = consumer.given.result()
                first = None
                yield ToldTurn(step.at_ms, step.deliveries)
                await self._until_over(stance, follower)
                has_left = not order.keeps_standing
                consumer.begin_anew(number=self._number(stance), attempt_id=secrets.token_hex(16))
                if has_left:
                    return
        except (QueueDrained, QueueDeleted) as error:
            # The line has gone with its queue, and in that of another life it does not get by a try that names its own.
            has_left = isinstance(error, QueueDeleted) and bool(consumer.waiter.generation)
            yield ToldOver(is_deleted=isinstance(error, QueueDeleted))
        finally:
            follower.leave(stance)
            gone = self._consumers.give_up_all(consumer, has_left=has_left)
            # Whoever learns that the stream has ended may come back to its place at once, elsewhere: then it is kept.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVING_S):
                    await gone.wait()

    async def _until_turn(
        self, stance: Stance, follower: Follower, first: GetStep | None
    ) -> AsyncGenerator[ToldPlace, None]:
        """Stands in line and tells places, until the consumer is given something, or an error."""
        consumer = stance.consumer
        line = self._consumers.join(consumer)
        consumer.given.add_done_callback(lambda _: stance.stir())
        try:
            has_looked = first is not None and await self._look(consumer.order.queue)
            follower.stand(stance)  # behind that, or its place could be told twice
            if first is None:
                follower.ask(stance)
            else:
                stance.polls = first.polls
                yield self.told(stance, first.at_ms, first.position, first.length, first.limit, is_estimated=has_looked)
                follower.told(stance)
                if first.position <= NEAR:  # what moved meanwhile was looked at without it
                    follower.ask(stance)
            while not consumer.given.done():
                await stance.news()
                if consumer.given.done() or stance.footing is None or not stance.footing.position:
                    continue
                if asyncio.get_running_loop().time() - stance.known_at > TRUE_FOR_S:
                    follower.ask(stance)
                    continue
                numbers = stance.numbers
                assert numbers is not None
                yield self.told(
                    stance, numbers.at_ms, stance.footing.position, numbers.consumers_waiting, numbers.limit
                )
                follower.told(stance)
        finally:
            line.forget(consumer)

    async def _look(self, queue: str) -> bool:
        """How the line is now: an estimator outlives its last look, and the queue may have been paused or made anew
        since. False if that cannot be learned in a moment."""
        try:
            found = await self._consumers.store.footings(queue, [], stand_again=False, budget_s=_FIRST_LOOK_S)
        except HeadwayError:
            return False
        self._estimates.of(queue).observe(found.numbers)
        return True

    def told(
        self, stance: Stance, at_ms: int, position: int, length: int, limit: int, *, is_estimated: bool = True
    ) -> ToldPlace:
        """What is told of a place just now; the stance remembers it. `is_estimated`: the queue was looked at just now,
        so the wait can be."""
        estimator = self._estimates.of(stance.consumer.order.queue)
        is_moved_back = 0 < stance.told_position < position
        stance.hints = poll_hints(stance.polls, position, busy=self._consumers.busyness.value)
        stance.told_position = position
        stance.told_at = asyncio.get_running_loop().time()
        if self._note_lag is not None and stance.numbers is not None:
            self._note_lag(stance.told_at - stance.known_at)
        standing = Place(
            place=stance.consumer.place,
            position=position,
            length=length,
            limit=limit,
            hints=stance.hints,
            eta=estimator.estimate_slot(position) if is_estimated else None,
        )
        return ToldPlace(at_ms, standing, is_moved_back)

    @staticmethod
    async def _until_over(stance: Stance, follower: Follower) -> None:
        """Returns when none of the turn's leases is left."""
        since = asyncio.get_running_loop().time()
        follower.hold(stance)
        while stance.footing is None or stance.known_at < since or stance.footing.owned:
            await stance.news()

    @staticmethod
    def _number(stance: Stance) -> int:
        """The number with which it stands in line again already; 0 if it begins at the end."""
        return stance.footing.number if stance.footing is not None and stance.footing.position else 0

    def _order(self, order: StandOrder) -> GetOrder:
        return GetOrder(
            queue=order.queue,
            max_messages=order.max_messages,
            max_bytes=self._max_bytes,
            lease_ms=order.lease_ms,
            consumer=order.consumer,
            attempt_id=secrets.token_hex(16),
            place=order.place,
        )

    def follower(self, queue: str) -> Follower:
        """The one that follows this queue's line."""
        follower = self._followers.get(queue)
        if follower is None:
            follower = self._followers[queue] = Follower(
                queue,
                self._consumers,
                self._estimates.of(queue),
                self._spawn,
                check_s=lambda: max(_SHORTEST_CHECK_S, len(self._followers) / _CHECKS_PER_S),
                on_end=lambda: self._followers.pop(queue, None),
            )
        return follower
