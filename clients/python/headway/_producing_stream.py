"""One Produce stream: sends sealed batches, several ahead of their answers, and hands each answer to its message."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from headway import _batch
from headway._batching import Answer, Batch, Gathering
from headway._duplex import Duplex
from headway.core.error import from_status
from headway.core.errors import Internal, Unavailable
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Message, OnDuplicate, PutResult

if TYPE_CHECKING:
    from headway._queue import Queue

# The reasons that are the matter of one message or of the queue; the others end the stream behind the answer
# (P-PRODUCE-5 of docs/protocol.md), and are no last word on the message.
_LAST_WORDS = frozenset(
    {
        ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND,
        ErrorReason.ERROR_REASON_QUEUE_CLOSED,
        ErrorReason.ERROR_REASON_QUEUE_DELETED,
        ErrorReason.ERROR_REASON_QUEUE_FULL,
        ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE,
        ErrorReason.ERROR_REASON_ROLE_IN_USE,
    }
)
# Those of them that are said before any id is looked at: an earlier try may have put the message all the same.
_BLIND = frozenset({ErrorReason.ERROR_REASON_QUEUE_CLOSED, ErrorReason.ERROR_REASON_ROLE_IN_USE})


class ProducingStream:
    """One stream's life; `run` it once. What it did not answer stays in the gathering."""

    def __init__(
        self, queue: "Queue", gathering: Gathering, on_duplicate: OnDuplicate.ValueType, *, is_proven: bool
    ) -> None:
        self._queue = queue
        self._gathering = gathering
        self._on_duplicate = on_duplicate
        self._is_proven = is_proven  # a batch may follow one that has no answer yet
        self._numbers = count(1)
        self._news = asyncio.Event()
        self._is_finishing = False
        self._is_ending = False
        self.was_open = False  # something could be sent
        self.sent_count = 0  # of the unanswered batches, from the first on

    def wake(self) -> None:
        """There is something to send."""
        self._news.set()

    def finish(self) -> None:
        """Nothing more will be sent."""
        self._is_finishing = True
        self._news.set()

    async def run(self, *, on_answer: Callable[[], None]) -> None:
        """Returns when it was finished. Raises HeadwayError if it ends otherwise."""
        connection = self._queue.client.connection
        duplex: Duplex[pb.ProduceRequest, pb.ProduceResponse] = Duplex.begin(connection, connection.queues.Produce)
        writing = asyncio.create_task(self._write(duplex))
        try:
            while (response := await duplex.read()) is not None:
                on_answer()
                self._take(response)
            if self._gathering.unanswered:
                raise Unavailable("the stream ended before its last answer")
        finally:
            duplex.cancel()
            writing.cancel()
            await asyncio.wait([writing])

    async def _write(self, duplex: Duplex[pb.ProduceRequest, pb.ProduceResponse]) -> None:
        unanswered = self._gathering.unanswered
        while True:
            while self.sent_count < len(unanswered) and (self._is_proven or not self.sent_count):
                if self._is_ending:
                    return
                batch = unanswered[self.sent_count]
                self.sent_count += 1
                batch.number = next(self._numbers)
                if not await duplex.write(self._request(batch)):
                    return
                self.was_open = True
            if self._is_finishing:
                await duplex.done_writing()
                return
            self._news.clear()
            await self._news.wait()

    def _request(self, batch: Batch) -> pb.ProduceRequest:
        on_duplicate = self._on_duplicate
        if batch.doubt is not None and on_duplicate == OnDuplicate.ON_DUPLICATE_REJECT:
            on_duplicate = OnDuplicate.ON_DUPLICATE_KEEP  # what an earlier try put is not to be refused
        return pb.ProduceRequest(
            queue=self._queue.name, messages=batch.messages, batch=batch.number, on_duplicate=on_duplicate
        )

    def _take(self, response: pb.ProduceResponse) -> None:
        batch = self._gathering.unanswered[0] if self.sent_count else None
        if batch is None or response.batch != batch.number or len(response.results) != len(batch.messages):
            raise Internal("an answer to no batch that was sent")
        is_rejecting = batch.doubt is not None and self._on_duplicate == OnDuplicate.ON_DUPLICATE_REJECT
        left = Batch(doubt=batch.doubt)
        for message, answer, result in zip(batch.messages, batch.answers, response.results, strict=True):
            if result.HasField("error"):
                self._refused(left, message, answer, result)
            elif answer.done():
                continue
            elif is_rejecting and result.deduplicated and result.body_differs:
                answer.set_exception(from_status(_batch.duplicate(self._queue.name, result.id).error))
            else:
                answer.set_result(result)
        self._is_proven = True
        self._news.set()
        if left.messages:  # the stream is about to end with their error
            self._is_ending = True
            self._gathering.unanswered[0] = left
        else:
            self.sent_count -= 1
            self._gathering.answered()

    def _refused(self, left: Batch, message: Message, answer: Answer, result: PutResult) -> None:
        error = from_status(result.error)
        is_last_word = error.reason in _LAST_WORDS or (error.is_outcome_unknown and not message.id)
        if not is_last_word:
            left.doubt = error if error.is_outcome_unknown else left.doubt
            left.messages.append(message)
            left.answers.append(answer)
        elif not answer.done():
            answer.set_exception((error.reason in _BLIND and left.doubt) or error)
