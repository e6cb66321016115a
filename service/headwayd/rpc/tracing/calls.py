"""The calls of a job, each around the servicer's own: what they ask and answer is told to the tracer.

Calls that are about no job (Create, Describe, the admin's …) are left as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from headway.v1 import message_pb2, queue_service_pb2
from headwayd.domain.limits import Limits
from headwayd.domain.namespaces import DEFAULT, qualifier, shown
from headwayd.domain.tracing import Carried
from headwayd.rpc.edge import Context
from headwayd.rpc.tracing.carrying import caller_of, carried_by, handed, write_into
from headwayd.rpc.tracing.port import JobTracer, PutSpan
from headwayd.rpc.tracing.results import end_put, reason_of, settlements
from headwayd.rpc.tracing.streams import consuming, producing, watching

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

    def _begin_put(
        self, operation: str, queue: str, messages: Sequence[message_pb2.Message], caller: Carried | None
    ) -> PutSpan:
        """The span of a batch, whose messages carry its context from now on."""
        if len(messages) > self._limits.max_batch_messages:
            messages = ()  # which is about to be refused
        span = self._tracer.put(
            operation, self._qualifier + queue, caller=caller, carried=[carried_by(message) for message in messages]
        )
        if (carries := span.carries) is not None:
            write_into(messages, carries, self._limits, is_for_bare=span.is_for_bare)
        return span

    def _put(self, behaviour: _Call) -> _Call:
        async def put(request: queue_service_pb2.PutRequest, context: Context) -> queue_service_pb2.PutResponse:
            span = self._begin_put("Put", request.queue, request.messages, caller_of(context))
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

            def begin(queue: str, messages: Sequence[message_pb2.Message]) -> PutSpan:
                return self._begin_put("Produce", queue, messages, caller)

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
