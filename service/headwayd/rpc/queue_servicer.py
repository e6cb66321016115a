"""The calls of producers and workers. Each checks its request, gives the engine an order, and converts the outcome.

Errors pass through as they are: `edge` makes them statuses. What is not overridden here is not served yet.
"""
# ruff: noqa: N802 - the methods are named by the schema

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from headwayd.domain.errors import QueueExists
from headwayd.rpc import requests
from headwayd.rpc.consuming import consume
from headwayd.rpc.conversion import (
    add_results,
    get_response,
    peek_response,
    put_response,
    queue_message,
    withdraw_response,
)
from headwayd.rpc.cutting import cut_off_of_this_call
from headwayd.rpc.deadlines import look_after_wait_ms, store_budget_s, wait_within_deadline_ms
from headwayd.rpc.edge import Context
from headwayd.rpc.encoded import Reply
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.policies import in_paths
from headwayd.rpc.producing import produce
from headwayd.rpc.watch_servicing import watch_position, watch_queue


class QueueServicer(queue_service_pb2_grpc.QueueServiceServicer):
    """`headway.v1.QueueService`, as far as it is served. Meanings, errors, idempotency: the schema's comments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits

    async def Create(
        self, request: queue_service_pb2.CreateRequest, context: Context
    ) -> queue_service_pb2.CreateResponse:
        """Makes a queue with a policy."""
        self._engine.check_name(request.queue)
        policy = requests.new_policy(request, self._limits)
        try:
            queue, created = await self._engine.create(request.queue, policy, budget_s=store_budget_s(context))
        except QueueExists as error:
            raise in_paths(error) from error
        return queue_service_pb2.CreateResponse(queue=queue_message(queue), created=created)

    async def Describe(
        self, request: queue_service_pb2.DescribeRequest, context: Context
    ) -> queue_service_pb2.DescribeResponse:
        """Tells everything about one queue."""
        self._engine.check_name(request.queue)
        queue = await self._engine.describe(request.queue, budget_s=store_budget_s(context))
        return queue_service_pb2.DescribeResponse(queue=queue_message(queue))

    async def List(self, request: queue_service_pb2.ListRequest, context: Context) -> queue_service_pb2.ListResponse:
        """Lists queues by name, page by page."""
        prefix, page_size, page_token = requests.queue_page(request, self._limits)
        queues, next_page_token = await self._engine.list_queues(
            prefix, page_size, page_token, budget_s=store_budget_s(context)
        )
        return queue_service_pb2.ListResponse(
            queues=[queue_message(queue) for queue in queues], next_page_token=next_page_token
        )

    async def Update(
        self, request: queue_service_pb2.UpdateRequest, context: Context
    ) -> queue_service_pb2.UpdateResponse:
        """Changes the named fields of a queue's policy."""
        self._engine.check_name(request.queue)
        policy, names = requests.changed_policy(request, self._limits)
        queue = await self._engine.update(
            request.queue,
            policy,
            names,
            max_backoff_follows=not request.policy.retry.HasField("max_backoff"),
            budget_s=store_budget_s(context),
        )
        return queue_service_pb2.UpdateResponse(queue=queue_message(queue))

    async def Close(self, request: queue_service_pb2.CloseRequest, context: Context) -> queue_service_pb2.CloseResponse:
        """Closes a queue for good."""
        self._engine.check_name(request.queue)
        wait_ms = wait_within_deadline_ms(requests.close_wait_ms(request, self._limits), context)
        look_ms = look_after_wait_ms(wait_ms, context)
        queue = await self._engine.close(request.queue, wait_ms, look_ms=look_ms, budget_s=store_budget_s(context))
        return queue_service_pb2.CloseResponse(queue=queue_message(queue))

    async def Delete(
        self, request: queue_service_pb2.DeleteRequest, context: Context
    ) -> queue_service_pb2.DeleteResponse:
        """Deletes a queue with all its messages."""
        self._engine.check_name(request.queue)
        wait_ms = wait_within_deadline_ms(requests.delete_wait_ms(request, self._limits), context)
        look_ms = look_after_wait_ms(wait_ms, context)
        await self._engine.delete(request.queue, wait_ms, look_ms=look_ms, budget_s=store_budget_s(context))
        return queue_service_pb2.DeleteResponse()

    async def Put(self, request: queue_service_pb2.PutRequest, context: Context) -> Reply:
        """Puts a batch of messages at the tail of the line."""
        self._engine.check_name(request.queue)
        order = requests.put_order(request, self._limits)
        if order.wait_ms:
            wait_ms = wait_within_deadline_ms(order.wait_ms, context)
            look_ms = look_after_wait_ms(wait_ms, context)
            order = order._replace(wait_ms=wait_ms, look_ms=look_ms, cut_off=cut_off_of_this_call())
        outcomes = await self._engine.put(order, budget_s=store_budget_s(context))
        return put_response(outcomes)

    async def Get(self, request: queue_service_pb2.GetRequest, context: Context) -> Reply:
        """Leases messages from the head of the line."""
        self._engine.check_name(request.queue)
        order = requests.get_order(request, self._limits)
        if order.wait_ms:
            wait_ms = wait_within_deadline_ms(order.wait_ms, context)
            look_ms = look_after_wait_ms(wait_ms, context)
            order = order._replace(wait_ms=wait_ms, look_ms=look_ms, cut_off=cut_off_of_this_call())
        outcome = await self._engine.get(order, budget_s=store_budget_s(context))
        return get_response(outcome)

    async def Ack(self, request: queue_service_pb2.AckRequest, context: Context) -> queue_service_pb2.AckResponse:
        """Settles leases for good."""
        self._engine.check_name(request.queue)
        leases = requests.acked_leases(request, self._limits)
        settled = await self._engine.ack(request.queue, leases, result=request.result, budget_s=store_budget_s(context))
        response = queue_service_pb2.AckResponse()
        add_results(response, "results", settled)
        return response

    async def Delay(self, request: queue_service_pb2.DelayRequest, context: Context) -> queue_service_pb2.DelayResponse:
        """Gives leased messages back, and postpones others."""
        self._engine.check_name(request.queue)
        order = requests.delay_order(request, self._limits)
        settled = await self._engine.delay(order, budget_s=store_budget_s(context))
        response = queue_service_pb2.DelayResponse()
        add_results(response, "results", settled)
        return response

    async def Extend(
        self, request: queue_service_pb2.ExtendRequest, context: Context
    ) -> queue_service_pb2.ExtendResponse:
        """Keeps leases alive."""
        self._engine.check_name(request.queue)
        leases, lease_ms, progress = requests.extension(request, self._limits)
        settled = await self._engine.extend(
            request.queue, leases, lease_ms, progress=progress, budget_s=store_budget_s(context)
        )
        response = queue_service_pb2.ExtendResponse()
        add_results(response, "results", settled)
        return response

    async def Withdraw(
        self, request: queue_service_pb2.WithdrawRequest, context: Context
    ) -> queue_service_pb2.WithdrawResponse:
        """Cancels messages that wait or are delayed."""
        self._engine.check_name(request.queue)
        ids = requests.withdrawn_ids(request, self._limits)
        outcomes = await self._engine.withdraw(request.queue, ids, budget_s=store_budget_s(context))
        return withdraw_response(outcomes)

    async def Peek(self, request: queue_service_pb2.PeekRequest, context: Context) -> queue_service_pb2.PeekResponse:
        """Looks at waiting messages without touching them."""
        self._engine.check_name(request.queue)
        from_position, max_messages = requests.peek_range(request, self._limits)
        messages = await self._engine.peek(request.queue, from_position, max_messages, budget_s=store_budget_s(context))
        return peek_response(messages, without_payloads=request.without_payloads)

    def Produce(
        self, requests: AsyncIterator[queue_service_pb2.ProduceRequest], context: Context
    ) -> AsyncGenerator[Reply, None]:
        """Puts batches on one stream, answered in order."""
        return produce(self._engine, requests, context)

    def Consume(
        self, requests: AsyncIterator[queue_service_pb2.ConsumeRequest], context: Context
    ) -> AsyncGenerator[Reply, None]:
        """Leases and settles on one stream."""
        return consume(self._engine, requests, context)

    def WatchPosition(
        self, request: queue_service_pb2.WatchPositionRequest, context: Context
    ) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
        """Streams the places of messages, or stands in the consumer line."""
        return watch_position(self._engine, request, context)

    def WatchQueue(
        self, request: queue_service_pb2.WatchQueueRequest, context: Context
    ) -> AsyncGenerator[queue_service_pb2.WatchQueueResponse, None]:
        """Streams a queue's numbers."""
        return watch_queue(self._engine, request, context)
