"""Gathers messages into batches: when one is full, when nothing is in flight, or when the linger is over."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway._batch import FRAMING_BYTES
from headway.core.error import HeadwayError
from headway.v1.message_pb2 import Message, PutResult

Answer = asyncio.Future[PutResult]


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that are sent together, each with the future of its result."""

    messages: list[Message] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    size: int = 0  # bytes in a request
    number: int = 0  # as sent last
    doubt: HeadwayError | None = None  # what an earlier try failed with that may have put some of it


@dataclass(slots=True, eq=False)
class _Entering:
    """A message for which there is no room yet."""

    message: Message
    size: int
    turn: asyncio.Future[Answer]


class Gathering:
    """What was given and not answered yet: at most `most_unanswered` batches that are sealed, and one that fills.

    More than that is held back. `on_sealed` is called when there is another batch to send.
    """

    def __init__(
        self,
        *,
        max_messages: int,
        max_bytes: int,
        linger_seconds: float,
        most_unanswered: int,
        on_sealed: Callable[[], None],
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._linger_seconds = linger_seconds
        self._most_unanswered = most_unanswered
        self._on_sealed = on_sealed
        self._loop = asyncio.get_running_loop()
        self._filling = Batch()
        self._timer: asyncio.Handle | None = None  # runs while something is in the batch that fills
        self._is_due = False  # its time has come, and it waits for an answer to another one
        self._entering: OrderedDict[_Entering, None] = OrderedDict()  # left from wherever in it, by many at once
        self.unanswered: deque[Batch] = deque()  # in the order in which they are to be put
        self._is_emptied = asyncio.Event()
        self._is_emptied.set()

    @property
    def is_empty(self) -> bool:
        """All that was given has been answered."""
        return self._is_emptied.is_set()

    async def emptied(self) -> None:
        """Returns when all that was given has been answered."""
        self.seal()
        await self._is_emptied.wait()

    async def add(self, message: Message) -> Answer:
        """Takes one message, waiting until there is room; the future of its result."""
        size = message.ByteSize() + FRAMING_BYTES
        if not self._entering and self._has_room(size):
            return self._enter(message, size)
        entering = _Entering(message, size, self._loop.create_future())
        self._entering[entering] = None
        try:
            return await entering.turn
        except asyncio.CancelledError:
            self._left(entering)
            raise

    def answered(self) -> None:
        """The first batch has its answers."""
        self.unanswered.popleft()
        self.go_on()

    def drop_empty(self) -> None:
        """Drops batches of which nothing is left to be sent, wherever they stand: the service refuses an empty one."""
        kept = [batch for batch in self.unanswered if batch.messages]
        self.unanswered.clear()
        self.unanswered.extend(kept)
        self.go_on()

    def go_on(self) -> None:
        """Seals what is due and lets in what has room now."""
        if self._filling.messages and (self._is_due or not self.unanswered):
            self._seal_if_allowed()
        while self._entering:
            first = next(iter(self._entering))
            if not first.turn.done():  # done: its caller was cancelled
                if not self._has_room(first.size):
                    return
                first.turn.set_result(self._enter(first.message, first.size))
            del self._entering[first]
        if not (self.unanswered or self._filling.messages):
            self._is_emptied.set()

    def seal(self) -> None:
        """Waits for no more messages to go with those that are there."""
        self._is_due = bool(self._filling.messages)
        self.go_on()

    def outstanding(self) -> list[Answer]:
        """The results that have not come yet, of what has found room."""
        return [answer for batch in (*self.unanswered, self._filling) for answer in batch.answers if not answer.done()]

    def fail(self, error: BaseException | None) -> None:
        """Gives everything up: with an error, or what is in doubt with that of its doubt; with None, as cancelled."""
        failed: list[tuple[asyncio.Future[Any], BaseException | None]] = [
            (answer, error and (batch.doubt or error))
            for batch in (*self.unanswered, self._filling)
            for answer in batch.answers
        ]
        failed += [(entering.turn, error) for entering in self._entering]
        self._entering.clear()
        self.unanswered.clear()
        self._begin_anew()
        self._is_emptied.set()
        for each, reason in failed:
            if each.done():
                continue
            if reason is None:
                each.cancel()
            else:
                each.set_exception(reason)

    def _left(self, entering: _Entering) -> None:
        """Its caller was cancelled: it waits no more, or nobody waits for the answer to what has just found room."""
        if entering in self._entering:
            del self._entering[entering]
            self.go_on()  # what stood behind it may be smaller
        elif not entering.turn.cancelled() and entering.turn.exception() is None:
            entering.turn.result().cancel()

    def _fits(self, size: int) -> bool:
        filling = self._filling
        if not filling.messages:
            return True
        return len(filling.messages) < self._max_messages and filling.size + size <= self._max_bytes

    def _may_seal(self) -> bool:
        return len(self.unanswered) < self._most_unanswered

    def _has_room(self, size: int) -> bool:
        return self._fits(size) or self._may_seal()

    def _enter(self, message: Message, size: int) -> Answer:
        if not self._fits(size):
            self._seal_if_allowed()
        answer: Answer = self._loop.create_future()
        filling = self._filling
        self._is_emptied.clear()
        filling.messages.append(message)
        filling.answers.append(answer)
        filling.size += size
        if len(filling.messages) >= self._max_messages or filling.size >= self._max_bytes:
            self._is_due = True
            self._seal_if_allowed()
        elif self._timer is None and not self._is_due:
            if self.unanswered:
                self._timer = self._loop.call_later(self._linger_seconds, self._time_is_over)
            else:  # nothing to wait for, but for what others put in this same moment
                self._timer = self._loop.call_soon(self._time_is_over)
        return answer

    def _time_is_over(self) -> None:
        self._timer = None
        self._is_due = True
        self._seal_if_allowed()

    def _seal_if_allowed(self) -> None:
        if self._may_seal():
            self.unanswered.append(self._filling)
            self._begin_anew()
            self._on_sealed()

    def _begin_anew(self) -> None:
        self._filling = Batch()
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
