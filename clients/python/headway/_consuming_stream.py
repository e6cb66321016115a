"""One Consume stream: sends what its consumer asks for, acks together, and hands out deliveries and results."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headway._duplex import Duplex
from headway.core.errors import Internal
from headway.core.leasing import SHORTEST
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery, SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue

# What the service refuses ends a stream, with all its leases. So what might be refused goes by a call instead.
_MOST_RESULT_BYTES = 4096
_MOST_REASON_BYTES = 1024
_MOST_NOTE_BYTES = 1024


_NOW = timedelta(0)


# What is told of a lease: what the service said; or None, the stream is over, and whether it may have been done.
Answered = Callable[[SettleResult | None, bool], object]


class NotTold(Exception):
    """The stream is over, and what was asked for on it has no answer."""

    def __init__(self, *, is_sent: bool) -> None:
        super().__init__("the stream is over")
        self.is_sent = is_sent  # it may have been done


@dataclass(slots=True)
class _Step:
    """What is to be sent: a request, or acks, which others may still join."""

    request: pb.ConsumeRequest | None = None
    tokens: list[str] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)


class ConsumingStream:
    """One stream's life; `run` it once. `ask` and `ack` may be called from when it is made until it is over."""

    def __init__(self, queue: "Queue", start: pb.ConsumeStart, *, most: int) -> None:
        self._queue = queue
        self._most = most  # leases in one step
        self._loop = asyncio.get_running_loop()
        self._steps: deque[_Step] = deque([_Step(pb.ConsumeRequest(start=start))])
        self._asked: deque[tuple[str, Answered]] = deque()  # sent, in the order of the results
        self._has_news = asyncio.Event()
        self._is_finishing = False
        self.is_over = False

    def ack(self, token: str, answered: Answered) -> None:
        """Settles for good, together with what else is acked before it is sent."""
        if self.is_over:  # no step is to grow that is left: `run` is about to tell those
            answered(None, False)
            return
        last = self._steps[-1] if self._steps else None
        if last is None or last.request is not None or len(last.tokens) >= self._most:
            last = self._send(_Step())
        last.tokens.append(token)
        last.answers.append(answered)

    def ask(self, request: pb.ConsumeRequest, tokens: Sequence[str] = ()) -> "list[asyncio.Future[SettleResult]]":
        """Sends a step that has a result for each of these leases. The futures raise NotTold."""
        answers: list[asyncio.Future[SettleResult]] = [self._loop.create_future() for _ in tokens]
        step = self._send(_Step(request, list(tokens), [_into(answer) for answer in answers]))
        if self.is_over:
            _leave(step.answers, is_sent=False)
        return answers

    def forget(self, token: str) -> None:
        """Names a lease that was settled by a call, so that it counts no more against the credit."""
        if not self.is_over:
            self.ack(token, _ignore)

    def finish(self) -> None:
        """Sends no more than was asked for until now; the stream ends when that is answered."""
        self._is_finishing = True
        self._has_news.set()

    async def run(self, told: Callable[[Sequence[Delivery]], None]) -> bool:
        """Tells deliveries as they come, and nothing at each other sign of life. Whether the queue is drained.

        Raises HeadwayError if the stream ends otherwise than it should.
        """
        connection = self._queue.client.connection
        duplex: Duplex[pb.ConsumeRequest, pb.ConsumeResponse] = Duplex.begin(connection, connection.queues.Consume)
        writing = asyncio.create_task(self._write(duplex))
        try:
            while (response := await duplex.read()) is not None:
                for result in response.settled:
                    self._take(result)
                told(response.deliveries)
                if response.drained:
                    return True
            return False
        finally:
            self.is_over = True
            duplex.cancel()
            writing.cancel()
            await asyncio.wait([writing])
            _leave([answered for _, answered in self._asked], is_sent=True)
            for step in self._steps:
                _leave(step.answers, is_sent=False)
            self._steps.clear()

    def _take(self, result: SettleResult) -> None:
        token, answered = self._asked[0] if self._asked else ("", None)
        if answered is None or result.lease != token:
            raise Internal("a result for what was not asked")
        self._asked.popleft()
        answered(result, True)

    def _send(self, step: _Step) -> _Step:
        if not self.is_over:
            self._steps.append(step)
            self._has_news.set()
        return step

    async def _write(self, duplex: "Duplex[pb.ConsumeRequest, pb.ConsumeResponse]") -> None:
        while True:
            while self._steps:
                step = self._steps.popleft()
                self._asked.extend(zip(step.tokens, step.answers, strict=True))
                request = step.request or pb.ConsumeRequest(ack=pb.AckRequest(leases=step.tokens))
                if not await duplex.write(request):
                    return
            if self._is_finishing:
                await duplex.done_writing()
                return
            self._has_news.clear()
            await self._has_news.wait()


class StreamLink:
    """By the stream that owns the lease; by calls once that is over, and for what it might refuse.

    An answer comes, or the stream ends: pings find out if the other side is gone, within half a minute.
    """

    def __init__(self, stream: ConsumingStream, *, longest_lease: timedelta, longest_delay: timedelta) -> None:
        self._stream = stream
        self._longest_lease = longest_lease
        self._longest_delay = longest_delay

    def ack(self, token: str, answered: Answered) -> None:
        """See `Link.ack`."""
        self._stream.ack(token, answered)

    async def ask(self, request: Any, on_lost: Callable[[], object] | None) -> SettleResult | None:
        """See `Link.ask`."""
        if not self._is_sound(request):
            return None
        token = request.leases[0]
        try:
            match request:
                case pb.AckRequest(result=b""):
                    answer: asyncio.Future[SettleResult] = asyncio.get_running_loop().create_future()
                    self._stream.ack(token, _into(answer))
                    return await answer
                case pb.AckRequest():
                    step = pb.ConsumeRequest(ack=request)
                case pb.DelayRequest():
                    step = pb.ConsumeRequest(delay=request)
                case _:
                    step = pb.ConsumeRequest(extend=request)
            return await self._stream.ask(step, [token])[0]
        except NotTold as end:
            if end.is_sent and on_lost is not None:
                on_lost()
            return None

    def forget(self, request: Any) -> None:
        """See `Link.forget`."""
        if not isinstance(request, pb.ExtendRequest):
            self._stream.forget(request.leases[0])

    def _is_sound(self, request: Any) -> bool:
        """Whether the service will not refuse it."""
        match request:
            case pb.AckRequest():
                return len(request.result) <= _MOST_RESULT_BYTES
            case pb.DelayRequest():
                is_near = not request.HasField("until") and _NOW <= request.delay.ToTimedelta() <= self._longest_delay
                return is_near and len(request.reason.encode()) <= _MOST_REASON_BYTES
            case _:
                progress = request.progress
                is_told = 0.0 <= progress.fraction <= 1.0 and len(progress.note.encode()) <= _MOST_NOTE_BYTES
                return bool(is_told and SHORTEST <= request.lease.ToTimedelta() <= self._longest_lease)


def _leave(answers: Sequence[Answered], *, is_sent: bool) -> None:
    for answered in answers:
        answered(None, is_sent)


def _into(answer: "asyncio.Future[SettleResult]") -> Answered:
    """Tells it to a future, which raises NotTold. Not everybody who asked waits for it."""

    def answered(result: SettleResult | None, is_sent: bool) -> None:
        if answer.done():
            return
        if result is not None:
            answer.set_result(result)
            return
        answer.set_exception(NotTold(is_sent=is_sent))
        answer.exception()

    return answered


def _ignore(_result: SettleResult | None, _is_sent: bool) -> None:
    pass
