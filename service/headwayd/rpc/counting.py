"""Calls that are counted: a shell around the guarded handlers, made only if somebody wants the numbers.

A call is counted when it has ended, with the code that its caller is told; CANCELLED if the caller did not wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import grpc

from headwayd.engine.counting.counts import DEFECT, Counts
from headwayd.rpc.edge import Context, Handlers
from headwayd.rpc.status import OK, code_name

_Behaviour = Callable[[Any, Context], Awaitable[Any]]


def counted(handlers: Handlers, counts: Counts) -> Handlers:
    """The same handlers, by their paths; what passes them is counted."""
    return {path: _counted(handler, path.rpartition("/")[2], counts) for path, handler in handlers.items()}


def _counted(handler: grpc.RpcMethodHandler[Any, Any], method: str, counts: Counts) -> grpc.RpcMethodHandler[Any, Any]:
    counts.calls[method, DEFECT] = 0
    coders = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    # The types know gRPC's threaded server only.
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_stream
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_unary(behaviour, method, counts), **coders)
    stream: Any = _stream(behaviour, method, counts)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream, **coders)
    return grpc.stream_stream_rpc_method_handler(stream, **coders)


def _unary(behaviour: _Behaviour, method: str, counts: Counts) -> _Behaviour:
    calls, was_fine = counts.calls, (method, OK)
    calls[was_fine] = 0
    seconds = counts.call_seconds[method]
    bounds, buckets = seconds.bounds, seconds.counts

    async def handle(request: Any, context: Context) -> Any:
        began = perf_counter()
        try:
            reply = await behaviour(request, context)
            calls[was_fine] += 1
        except BaseException:
            counts.note_call(method, code_name(context))
            raise
        finally:
            span = perf_counter() - began
            buckets[bisect_left(bounds, span)] += 1
            seconds.total += span
        return reply

    return handle


def _stream(behaviour: _Behaviour, method: str, counts: Counts) -> _Behaviour:
    async def handle(request: Any, context: Context) -> None:
        counts.stream_count += 1
        try:
            await behaviour(request, context)
        except BaseException:
            counts.note_call(method, code_name(context))
            raise
        else:
            counts.note_call(method, OK)
        finally:
            counts.stream_count -= 1

    return handle
