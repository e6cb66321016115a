"""Stands in the consumer line: tells my place while I wait, brings my turn, and keeps its leases while I hold them."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headway._lease import Lease
from headway._newest import Newest
from headway._outage import Outage
from headway._places import Granted, Place, Turn, read_instant, read_place
from headway.core.connecting import backoff_seconds, span
from headway.core.error import HeadwayError
from headway.core.errors import PlaceLost, QueueDeleted, QueueDrained
from headway.core.watching import follow
from headway.v1 import queue_service_pb2 as pb

if TYPE_CHECKING:
    from headway._queue import Queue

_log = logging.getLogger("headway")

_NOW = timedelta(0)
_GIVE_BACK_SECONDS = 5.0  # how long leaving may take that gives leases back; then they lapse by themselves
_CONFIRM_SECONDS = 2.0  # one question after a broken stream whether a lease is still mine


class Stand:
    """A place in a queue's consumer line; see `Queue.stand`.

    Iterate over it for the place while it moves and then the turn, or ask for the `turn` alone. A stream to the service
    owns the place and the leases. If it breaks while waiting, a new one comes back to the place if the queue's
    `place_grace` allows, else to the end of the line. If it breaks while leases are held, the service gives them back
    as soon as it knows; each lease is asked after at once, and `Lease.is_lost` tells.
    """

    def __init__(
        self, queue: "Queue", *, consumer: str, max_messages: int, keep_standing: bool, lease: timedelta | None
    ) -> None:
        self._queue = queue
        self._consumer = consumer
        self._max_messages = max_messages
        self._keep_standing = keep_standing
        self._lease = lease
        self._span = _NOW if lease is None else lease  # what the policy says in the beginning, for what does not tell
        self._reader: asyncio.Task[None] | None = None
        self._token = ""  # names the place to come back to
        self._place: Place | None = None  # the last one told
        self._newest = Newest()  # of the places
        self._before: Place | None = None  # the last one of the stream before, until this stream tells one
        self._held: dict[str, Lease] = {}  # by token: granted and not settled
        self._keepers: dict[str, asyncio.Task[None]] = {}  # of those in `_held`
        self._tasks: set[asyncio.Task[None]] = set()  # the keepers that have not ended
        self._none_held = asyncio.Event()
        self._turn_count = 0
        self._outage = Outage(queue.name)  # behind a lost place: `follow` takes what it does then for a beginning
        self._was_served = False
        # What was not looked at yet: only the newest place counts.
        self._unseen_place: Place | None = None
        self._unseen_turns: deque[Granted] = deque()
        self._is_over = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def place(self) -> Place | None:
        """The place as it was last told; None before that."""
        return self._place

    @property
    def leases(self) -> Sequence[Lease]:
        """The leases that were granted and are not settled."""
        return tuple(self._held.values())

    async def turn(self) -> Sequence[Lease]:
        """Waits for the next turn and answers its leases; empty if there will never be one: the queue is drained, or
        there was a turn and it does not keep standing.

        May be cancelled, by a timeout for example, and called again: the place is kept meanwhile. Raises what iterating
        raises.
        """
        async for told in self:
            if isinstance(told, Granted):
                return told.leases
        return ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Turn:
        """The place whenever it changes, and the turn; ends after the turn unless it keeps standing, or at the drain.

        Raises QueueNotFound, QueueDeleted, what is wrong with the arguments, and Unavailable if the service does not
        answer in the beginning; later it is waited for.
        """
        if self._reader is None:
            raise RuntimeError("use `async with queue.stand()`")
        while True:
            if self._unseen_turns:
                return self._unseen_turns.popleft()
            if self._turn_count and not self._keep_standing:
                raise StopAsyncIteration
            if self._unseen_place is not None:
                place, self._unseen_place = self._unseen_place, None
                return place
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def __aenter__(self) -> Self:
        if self._lease is None:
            self._span = await self._queue.policy_lease()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])
        finally:  # as well if this is cancelled: else leases that are given up would be extended
            for keeper in self._tasks:
                keeper.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        left, self._held = list(self._held), {}
        if left:
            await self._give_back(left)

    async def _give_back(self, tokens: Sequence[str]) -> None:
        """The end of the stream gives them back already, if there was one: this makes it sure, and waits for it."""
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                await self._queue.delay(tokens, _NOW, keep_attempt=True)
        except (HeadwayError, TimeoutError) as error:
            _log.warning("could not give messages back: %s", str(error) or "no answer in time")

    async def _read(self) -> None:
        try:
            while True:
                try:
                    await self._read_streams()
                    break
                except PlaceLost:
                    if not self._token:
                        raise
                    self._token = ""  # a new one, then
                except HeadwayError as error:
                    if not (self._was_served and error.is_passing):
                        raise  # it is the beginning, or would not go away by itself
                    await asyncio.sleep(self._outage.pause_seconds(error))
        except QueueDrained:
            pass  # the end, just as if the stream had said so
        except Exception as error:  # noqa: BLE001 - the loop's guard: whoever waits for news raises it
            self._error = error
        finally:
            self._is_over = True
            self._news.set()

    async def _read_streams(self) -> None:
        rpc = self._queue.client.connection.queues.WatchPosition
        answers = follow(self._queue.client.connection, self._queue.name, rpc, self._request)
        async with aclosing(answers):
            async for answer in answers:
                match answer.WhichOneof("event"):
                    case "position":
                        self._note_place(answer)
                    case "granted":
                        self._note_turn(answer)
                    case "finished":
                        if answer.finished.outcome == pb.OUTCOME_DELETED:
                            raise self._deleted()
                        return
                self._was_served = True
                self._outage.over()
                self._news.set()

    async def _request(self) -> pb.WatchPositionRequest | None:
        """What a new stream asks for; None if none is needed. Waits until the leases of the last one are settled."""
        failures = 0
        while unsure := list(self._held.values()):
            if all(await asyncio.gather(*(lease.confirm(within=_CONFIRM_SECONDS) for lease in unsure))):
                break
            failures += 1
            await asyncio.sleep(backoff_seconds(failures))
        while self._held:
            self._none_held.clear()
            await self._none_held.wait()
        if self._turn_count and not self._keep_standing:
            return None
        self._newest.begin()
        self._before = self._place
        stand = pb.Stand(
            consumer=self._consumer,
            place=self._token,
            lease=span(self._lease),
            max_messages=self._max_messages,
            keep_standing=self._keep_standing,
        )
        return pb.WatchPositionRequest(queue=self._queue.name, stand=stand)

    def _note_place(self, answer: pb.WatchPositionResponse) -> None:
        self._token = answer.position.place
        if self._newest.is_news(answer.as_of):
            self._place = self._unseen_place = read_place(answer, self._before)
            self._before = None

    def _note_turn(self, answer: pb.WatchPositionResponse) -> None:
        leases = []
        for delivery in answer.granted.deliveries:
            token = delivery.lease
            lease = Lease(
                self._queue,
                delivery,
                span=self._span,
                by_policy=self._lease is None,
                on_end=self._note_end,
            )
            self._held[token] = lease
            self._keepers[token] = keeper = asyncio.create_task(lease.keep_alive())
            self._tasks.add(keeper)
            keeper.add_done_callback(self._tasks.discard)
            leases.append(lease)
        self._turn_count += 1
        self._unseen_place = None
        self._place = self._before = None  # whoever stands again stands anew, behind or before where it stood
        self._newest = Newest()
        self._unseen_turns.append(Granted(as_of=read_instant(answer.as_of), leases=leases))

    def _note_end(self, lease: Lease) -> None:
        """It was settled, or found lost."""
        self._held.pop(lease.token, None)
        keeper = self._keepers.pop(lease.token, None)
        if keeper is not None and keeper is not asyncio.current_task():
            keeper.cancel()
        if not self._held:
            self._none_held.set()

    def _deleted(self) -> QueueDeleted:
        return QueueDeleted(
            f"the queue {self._queue.name!r} was deleted",
            metadata={"queue": self._queue.name},
        )
