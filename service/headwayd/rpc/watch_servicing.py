"""The calls of those who watch. Each is a stream, which `streams` drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from headway.v1 import queue_service_pb2
from headwayd.rpc import watch_requests
from headwayd.rpc.blocked import watch_blocked
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.standing import stand
from headwayd.rpc.watch_conversion import numbered, position_response, watch_queue_response


def watch_position(
    engine: Engine, request: queue_service_pb2.WatchPositionRequest, context: Context
) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
    """Streams the places of messages or of a blocked producer, or stands in the consumer line."""
    match request.WhichOneof("subject"):
        case "stand":
            return stand(engine, request, context)
        case "blocked":
            return watch_blocked(engine, request, context)
        case _:
            return _watch_messages(engine, request, context)


def _watch_messages(
    engine: Engine, request: queue_service_pb2.WatchPositionRequest, context: Context
) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
    engine.check_name(request.queue)
    order = watch_requests.watch_order(request, engine.limits)
    return numbered(engine.watch_messages(order, budget_s=store_budget_s(context)), position_response)


async def watch_queue(
    engine: Engine, request: queue_service_pb2.WatchQueueRequest, context: Context
) -> AsyncGenerator[queue_service_pb2.WatchQueueResponse, None]:
    """Streams a queue's numbers."""
    engine.check_name(request.queue)
    interval_s = watch_requests.interval_ms(request, engine.limits) / 1_000
    async with aclosing(engine.watch_queue(request.queue, interval_s, budget_s=store_budget_s(context))) as shown:
        async for told in shown:
            yield watch_queue_response(told)
