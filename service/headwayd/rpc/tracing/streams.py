"""The streams of a job, each around the servicer's own."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from headway.v1 import queue_service_pb2 as pb
from headwayd.domain.model import Settled, Settlement
from headwayd.domain.tracing import CANCELLED, thinned
from headwayd.rpc.bare_messages import BareRequest
from headwayd.rpc.edge import Context
from headwayd.rpc.tracing.carrying import caller_of, handed
from headwayd.rpc.tracing.port import JobTracer, PutSpan
from headwayd.rpc.tracing.results import end_put, reason_of, settlements

Request = TypeVar("Request")
Batch = pb.PutRequest | pb.ProduceRequest | BareRequest  # the request that has it
BeginPut = Callable[[str, Batch], tuple[PutSpan, Batch]]
_Streaming = Callable[[Any, Context], AsyncGenerator[Any, None]]
_MOST_LEASES = 20_000  # that are remembered for each stream; so many are followed at the most, of all streams


class _Noted(AsyncIterator[Request]):
    """Requests, each told to `note`, which says what is read on in its place. An iterator and no generator: it has
    nothing to clean up."""

    def __init__(self, requests: AsyncIterator[Request], note: Callable[[Request], Request]) -> None:
        self._requests = requests
        self._note = note

    async def __anext__(self) -> Request:
        return self._note(await anext(self._requests))


async def producing(
    begin: BeginPut, behaviour: _Streaming, asked: AsyncIterator[Batch], context: Context
) -> AsyncGenerator[pb.ProduceResponse, None]:
    """Each batch is a span, from when it was read to its answer. `begin` makes one, for a queue and a batch, and says
    which batch to put."""
    unanswered: deque[PutSpan] = deque()  # in order, which is that of the answers
    queue = ""

    def note(batch: Batch) -> Batch:
        nonlocal queue
        queue = batch.queue or queue
        span, batch = begin(queue, batch)
        unanswered.append(span)
        return batch

    reason = CANCELLED
    try:
        async with aclosing(behaviour(_Noted(asked, note), context)) as answers:
            async for answer in answers:
                end_put(unanswered.popleft(), answer.results)
                yield answer
    except BaseException as error:
        reason = reason_of(error)
        raise
    finally:
        for span in unanswered:
            span.failed(reason)


class _Settles:
    """What a consumer's stream asked to be settled, until it is answered."""

    def __init__(self, tracer: JobTracer, qualifier: str) -> None:
        self.queue = ""
        self._qualifier = qualifier
        self._tracer = tracer
        self._asked: dict[str, tuple[str, int]] = {}  # by lease: the operation, and when it was asked for

    def note(self, request: pb.ConsumeRequest) -> pb.ConsumeRequest:
        """A step that was asked for; it is read on as it is."""
        match request.WhichOneof("step"):
            case "start":
                self.queue = self.queue or self._qualifier + request.start.queue
            case "ack":
                self._add("Ack", request.ack.leases)
            case "delay":
                self._add("Delay", request.delay.leases)
            case "extend":
                self._add("Extend", request.extend.leases)
        return request

    def _add(self, operation: str, leases: Iterable[str]) -> None:
        asked = (operation, self._tracer.now_ns())
        for lease in leases:
            self._asked[lease] = asked

    def tell(self, results: list[Settlement], context: Context) -> None:
        """What was settled, in one span for each step that was asked for."""
        steps: dict[tuple[str, int], list[Settlement]] = {}
        for result in results:
            asked = self._asked.pop(result.lease, None) or ("Ack", self._tracer.now_ns())
            steps.setdefault(asked, []).append(result)
        for (operation, began_ns), settled in steps.items():
            self._tracer.settled(operation, self.queue, settled, began_ns=began_ns, caller=caller_of(context))


async def consuming(
    tracer: JobTracer, qualifier: str, behaviour: _Streaming, asked: AsyncIterator[pb.ConsumeRequest], context: Context
) -> AsyncGenerator[pb.ConsumeResponse, None]:
    """What is handed out and settled is told reply by reply; what was not settled went back when the stream ends."""
    settles = _Settles(tracer, qualifier)
    leases: OrderedDict[str, None] = OrderedDict()  # those that lapsed, which nobody tells here, are the first to go
    try:
        async with aclosing(behaviour(_Noted(asked, settles.note), context)) as replies:
            async for reply in replies:
                if reply.settled:
                    results = settlements(reply.settled)
                    for result in results:
                        if result.settled is not Settled.EXTENDED:
                            leases.pop(result.lease, None)
                    settles.tell(results, context)
                if reply.deliveries:
                    messages = handed(reply.deliveries)
                    leases.update((message.lease, None) for message in messages)
                    while len(leases) > _MOST_LEASES:
                        leases.popitem(last=False)
                    tracer.handed("Consume", settles.queue, messages, began_ns=None, caller=caller_of(context))
                yield reply
    finally:
        tracer.ended(leases)


async def watching(
    tracer: JobTracer, qualifier: str, behaviour: _Streaming, request: pb.WatchPositionRequest, context: Context
) -> AsyncGenerator[pb.WatchPositionResponse, None]:
    """Positions of messages are told to the tracer; of a stream that stands in the consumer line, what its turns
    bring, with the places on the way."""
    is_standing = request.WhichOneof("subject") == "stand"
    began_ns, queue = tracer.now_ns(), qualifier + request.queue
    places: list[tuple[int, int]] = []
    leases: set[str] = set()
    try:
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                event = reply.WhichOneof("event")
                if event == "position" and is_standing:
                    places.append((reply.as_of.ToMilliseconds(), reply.position.position))
                    thinned(places)
                elif event == "position" and reply.position.position:
                    at_ms = reply.as_of.ToMilliseconds()
                    tracer.moved(queue, reply.position.id, at_ms, reply.position.position)
                elif event == "granted":
                    messages = handed(reply.granted.deliveries)
                    leases = {message.lease for message in messages}  # a turn comes when all of the last are settled
                    tracer.handed(
                        "WatchPosition",
                        queue,
                        messages,
                        began_ns=began_ns,
                        caller=caller_of(context),
                        places=places,
                    )
                    began_ns, places = tracer.now_ns(), []
                yield reply
    finally:
        tracer.ended(leases)
