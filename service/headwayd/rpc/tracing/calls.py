"""The calls of a job, each around the servicer's own: what they ask and answer is told to the tracer.

Calls that are about no job (Create, Describe, the admin's …) are left as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from headway.v1 import queue_service_pb2
from headwayd.domain.limits import Limits
from headwayd.domain.namespaces import DEFAULT, qualifier, shown
from headwayd.domain.tracing import Carried
from headwayd.rpc.bare_messages import BareRequest
from headwayd.rpc.edge import Context
from headwayd.rpc.tracing.carrying import caller_of, carried_by, handed, write_into
from headwayd.rpc.tracing.port import JobTracer, PutSpan
from headwayd.rpc.tracing.results import end_put, reason_of, settlements
from headwayd.rpc.tracing.streams import Batch, consuming, producing, watching

_Call = Callable[[Any, Context], Awaitable[Any]]


class CallTracing:
    """Wraps servicers' methods for callers of one namespace, whose queues the tracer is to tell from others' of the
    same name. `limits` are those of the service."""

    def __init__(self, tracer: JobTracer, *, namespace: str = DEFAULT, limits: Limits) -> None:
        self._tracer = tracer
        self._qualifier = shown(qualifier(namespace))
        self._limits = limits

    def traced(self, method: str, behaviour: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
        """The behaviour of this RPC with its spans; the same one if it has none."""
        match method:
            case "Put":
                return self._put(behaviour)
            case "Get":
                return self._get(behaviour)
            case "Ack" | "Delay" | "Extend":
                return self._settle(method, behaviour)
            case "Produce":
                return self._produce(behaviour)
            case "Consume":
                return partial(consuming, self._tracer, self._qualifier, behaviour)
            case "WatchPosition":
                return partial(watching, self._tracer, self._qualifier, behaviour)
        return behaviour

    def _begin_put(self, operation: str, queue: str, batch: Batch, caller: Carried | None) -> tuple[PutSpan, Batch]:
        """The span of a batch, and the batch to go on with: its messages carry the span's context."""
        carried = self._carried(batch)
        span = self._tracer.put(operation, self._qualifier + queue, caller=caller, carried=carried)
        if (carries := span.carries) is None or not carried:
            return span, batch
        if isinstance(batch, BareRequest):
            if not span.is_for_bare:
                return span, batch
            batch = batch.whole()
        write_into(batch.messages, carries, self._limits, is_for_bare=span.is_for_bare)
        return span, batch

    def _carried(self, batch: Batch) -> Sequence[Carried | None]:
        """What each message of a batch carries; nothing if that has too many and is about to be refused."""
        count = len(batch.payloads) if isinstance(batch, BareRequest) else len(batch.messages)
        if count > self._limits.max_batch_messages:
            return ()
        return [None] * count if isinstance(batch, BareRequest) else list(map(carried_by, batch.messages))

    def _put(self, behaviour: _Call) -> _Call:
        async def put(request: Batch, context: Context) -> queue_service_pb2.PutResponse:
            span, request = self._begin_put("Put", request.queue, request, caller_of(context))
            try:
                response: queue_service_pb2.PutResponse = await behaviour(request, context)
            except BaseException as error:
                span.failed(reason_of(error))
                raise
            end_put(span, response.results)
            return response

        return put

    def _produce(self, behaviour: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
        def produce(asked: Any, context: Context) -> Any:
            caller = caller_of(context)

            def begin(queue: str, batch: Batch) -> tuple[PutSpan, Batch]:
                return self._begin_put("Produce", queue, batch, caller)

            return producing(begin, behaviour, asked, context)

        return produce

    def _get(self, behaviour: _Call) -> _Call:
        tracer = self._tracer

        async def get(request: queue_service_pb2.GetRequest, context: Context) -> queue_service_pb2.GetResponse:
            began_ns, caller, queue = tracer.now_ns(), caller_of(context), self._qualifier + request.queue
            try:
                response: queue_service_pb2.GetResponse = await behaviour(request, context)
            except BaseException as error:
                tracer.failed("Get", queue, reason_of(error), began_ns=began_ns, caller=caller)
                raise
            if response.settled:
                tracer.settled("Get", queue, settlements(response.settled), began_ns=began_ns, caller=caller)
            if response.deliveries:
                tracer.handed("Get", queue, handed(response.deliveries), began_ns=began_ns, caller=caller)
            return response

        return get

    def _settle(self, operation: str, behaviour: _Call) -> _Call:
        tracer = self._tracer

        async def settle(request: Any, context: Context) -> Any:
            began_ns, caller, queue = tracer.now_ns(), caller_of(context), self._qualifier + request.queue
            try:
                response = await behaviour(request, context)
            except BaseException as error:
                tracer.failed(operation, queue, reason_of(error), began_ns=began_ns, caller=caller)
                raise
            tracer.settled(operation, queue, settlements(response.results), began_ns=began_ns, caller=caller)
            return response

        return settle
