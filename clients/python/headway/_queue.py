"""One queue, seen by a client: each call of the service that names a queue, and the working loops over it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Unpack

from headway import _batch, _work
from headway._errors import HeadwayError, QueueFull, from_status
from headway._lease import Lease
from headway._policy import PolicyFields, build_policy, update_mask
from headway._spans import available, whole_milliseconds
from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Delivery, Message, Progress, PutResult, SettleResult, Status
from headway.v1.queue_pb2 import Policy
from headway.v1.queue_pb2 import Queue as QueueState

if TYPE_CHECKING:
    from headway._client import Client

_CLOSE_WAIT = timedelta(seconds=1)  # what the service waits if nothing is said; the deadline must be behind it
_DELETE_WAIT = timedelta(seconds=5)


class Queue:
    """A handle on the queue of one name; making it calls nothing. Its methods are the service's calls.

    Every call answers within the client's `call_timeout` plus its own `wait`, and raises HeadwayError: beside what is
    named at a method, NameRefused, Unavailable and DeadlineExceeded can befall any.
    """

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = name
        self._connection = client.connection
        self._policy_lease: timedelta | None = None

    def __repr__(self) -> str:
        return f"<headway queue {self.name!r} at {self._connection.target}>"

    async def create(self, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> pb.CreateResponse:
        """Makes the queue: with a Policy, or its fields, or the fields laid over the Policy.

        Idempotent: the same policy again answers `created` = False. Raises QueueExists if it stands with another.
        """
        request = pb.CreateRequest(queue=self.name, policy=build_policy(policy, fields))
        return await self._connection.call(self._connection.queues.Create, request)

    async def describe(self) -> QueueState:
        """Everything about the queue, as of one instant. Raises QueueNotFound."""
        response: pb.DescribeResponse = await self._connection.call(
            self._connection.queues.Describe, pb.DescribeRequest(queue=self.name)
        )
        return response.queue

    async def update(self, **fields: Unpack[PolicyFields]) -> QueueState:
        """Changes the given fields of the policy; None gives a field its default. Idempotent. Raises QueueNotFound."""
        request = pb.UpdateRequest(queue=self.name, policy=build_policy(None, fields), update_mask=update_mask(fields))
        response: pb.UpdateResponse = await self._connection.call(self._connection.queues.Update, request)
        self._policy_lease = None
        return response.queue

    async def put(
        self,
        payload: bytes | Message,
        *,
        id: str = "",  # noqa: A002 - the schema's word
        headers: Mapping[str, str] | None = None,
        delay: timedelta | datetime | None = None,
        time_to_live: timedelta | None = None,
        wait: timedelta | None = None,
        on_duplicate: _batch.OnDuplicateName = "reject",
        producer: str = "",
    ) -> PutResult:
        """Puts one message: a payload with its parts, or a Message as it is.

        `delay` is a span from now or an instant. A full queue is waited for up to `wait` (default: not at all). With an
        `id` it is idempotent and repeated after a lost answer. Raises QueueNotFound, QueueClosed, QueueFull,
        DuplicateMessage, RoleInUse, TooLarge, StoreFull.
        """
        if isinstance(payload, Message):
            if id or headers or delay is not None or time_to_live is not None:
                raise TypeError("a Message carries its own id, headers and times")
            message = payload
        else:
            message = _batch.make_message(payload, id=id, headers=headers, when=delay, time_to_live=time_to_live)
        request = self._put_request([message], wait, on_duplicate, producer)
        result = (await _batch.send_batch(self._connection, request, wait)).results[0]
        if result.HasField("error"):
            raise from_status(result.error)
        return result

    async def put_many(
        self,
        messages: Iterable[bytes | Message],
        *,
        wait: timedelta | None = None,
        on_duplicate: _batch.OnDuplicateName = "reject",
        producer: str = "",
    ) -> list[PutResult]:
        """Puts messages in order, in as many batches as the service's limits ask for; `wait` is for each batch.

        Answers one result per message, in order; a message that was refused has `error` set. Once messages find no room
        the batches behind them are not sent, and answered QUEUE_FULL too. Raises QueueFull if not even one was
        accepted; whatever else a batch fails with is raised with the earlier batches' results as `error.results`.
        """
        made = [m if isinstance(m, Message) else _batch.make_message(m) for m in messages]
        results: list[PutResult] = []
        if not made:
            return results
        for batch in _batch.batches(made, await self.client.limits()):
            request = self._put_request(batch, wait, on_duplicate, producer)
            try:
                answer = await _batch.send_batch(self._connection, request, wait)
            except QueueFull as error:
                if not results:
                    raise
                return _refuse_rest(results, made, error)
            except HeadwayError as error:
                error.results = results
                raise
            results.extend(answer.results)
            full = [r.error for r in answer.results if r.error.reason == ErrorReason.ERROR_REASON_QUEUE_FULL]
            if full:
                return _refuse_rest(results, made, from_status(full[0]))
        return results

    async def get(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta | None = None,
        lease: timedelta | None = None,
        consumer: str = "",
        ack: Sequence[str] = (),
    ) -> pb.GetResponse:
        """Leases up to `max_messages`, waiting up to `wait` (default: not at all) for the first; acks leases first.

        An empty answer is a result. The leases run `lease` (default: the policy's) and nothing keeps them alive: see
        `hold`, `lease`, `work` and `run`. If the call is cancelled the service gives back what it leased. Raises
        QueueNotFound, QueueDrained, QueueDeleted, QueuePaused, RoleInUse, but not if it acks.
        """
        request = pb.GetRequest(
            queue=self.name,
            max_messages=max_messages,
            wait=whole_milliseconds(wait) if wait is not None else None,
            lease=whole_milliseconds(lease) if lease is not None else None,
            consumer=consumer,
            ack=ack,
        )
        return await self._connection.call(self._connection.queues.Get, request, wait=wait)

    def hold(self, delivery: Delivery, *, lease: timedelta) -> Lease:
        """A handle on a delivery that `get` brought; `lease` is the span it was leased for."""
        return Lease(self, delivery, span=lease)

    @asynccontextmanager
    async def lease(
        self, *, wait: timedelta | None = None, lease: timedelta | None = None, consumer: str = ""
    ) -> AsyncIterator[Lease | None]:
        """Leases one message for the length of a block; None if nothing came within `wait`. See `Lease`.

        Raises what `get` raises, and LeaseStale or LeaseGone at the end if the work has no say any more.
        """
        span = lease or await self.policy_lease()
        response = await self.get(wait=wait, lease=span, consumer=consumer)
        if not response.deliveries:
            yield None
            return
        async with self.hold(response.deliveries[0], lease=span) as held:
            yield held

    def work(self, *, concurrency: int = 1, lease: timedelta | None = None, consumer: str = "") -> AsyncIterator[Lease]:
        """Yields leases as messages come, at most `concurrency` unsettled at once; ends when the queue is drained.

        Use each as `async with lease:`, here or in a task of your own, or settle it explicitly within its span. Nothing
        is fetched ahead: leaving the loop leaves nothing leased behind. While the service is away or busy it waits and
        goes on. Raises QueueNotFound, QueueDeleted and what is wrong with the arguments.
        """
        return _work.work(self, concurrency=concurrency, lease=lease, consumer=consumer)

    async def run(
        self,
        handler: _work.Handler,
        *,
        concurrency: int = 1,
        lease: timedelta | None = None,
        consumer: str = "",
        stop: asyncio.Event | None = None,
        drain: bool = False,
    ) -> None:
        """Calls `handler` with a Lease for each message, `concurrency` at a time, until the queue is drained.

        Each lease is kept alive while its handler runs; then it is acked together with the next Get, unless the handler
        settled it. A handler that raises gives its message to the queue's backoff. When `stop` is set it fetches no
        more, finishes what it holds and returns; when it is cancelled the handlers are, and their messages are given
        back for free. With `drain` it also returns once nothing waits, is delayed or is leased. While the service is
        away or busy it waits and goes on, and says so in the log "headway". Raises QueueNotFound, QueueDeleted and what
        is wrong with the arguments, after finishing what it holds.
        """
        runner = _work.Runner(
            self, handler, concurrency=concurrency, lease=lease, consumer=consumer, stop=stop, drain=drain
        )
        await runner.run()

    async def ack(self, leases: Sequence[str], *, result: bytes = b"") -> list[SettleResult]:
        """Settles leases for good; one result per lease, in order: ACKED, ALREADY_ACKED, STALE or GONE. Idempotent."""
        request = pb.AckRequest(queue=self.name, leases=leases, result=result)
        response: pb.AckResponse = await self._connection.call(self._connection.queues.Ack, request)
        return list(response.results)

    async def delay(
        self,
        leases: Sequence[str] = (),
        delay: timedelta | datetime | None = None,
        *,
        message_ids: Sequence[str] = (),
        reason: str = "",
        keep_attempt: bool = False,
    ) -> list[SettleResult]:
        """Gives leased messages back, or postpones waiting ones by id; one result each, leases first.

        `delay` is a span (0: now, at the head) or an instant; None is the queue's backoff. Costs an attempt unless
        `keep_attempt`. `reason`: at most 1024 bytes, kept with the message.
        """
        span, until = available(delay) if delay is not None else (None, None)
        request = pb.DelayRequest(
            queue=self.name,
            leases=leases,
            message_ids=message_ids,
            delay=span,
            until=until,
            reason=reason,
            keep_attempt=keep_attempt,
        )
        response: pb.DelayResponse = await self._connection.call(self._connection.queues.Delay, request)
        return list(response.results)

    async def extend(
        self, leases: Sequence[str], lease: timedelta | None = None, *, progress: Progress | None = None
    ) -> list[SettleResult]:
        """Lets leases run `lease` (default: the policy's) from now; one result each: EXTENDED, STALE or GONE."""
        request = pb.ExtendRequest(
            queue=self.name,
            leases=leases,
            lease=whole_milliseconds(lease) if lease is not None else None,
            progress=progress,
        )
        response: pb.ExtendResponse = await self._connection.call(self._connection.queues.Extend, request)
        return list(response.results)

    async def peek(
        self, max_messages: int = 1, *, from_position: int = 1, without_payloads: bool = False
    ) -> list[pb.PeekedMessage]:
        """Looks at waiting messages from a position on and touches nothing. Raises QueueNotFound."""
        request = pb.PeekRequest(
            queue=self.name,
            max_messages=max_messages,
            from_position=from_position,
            without_payloads=without_payloads,
        )
        response: pb.PeekResponse = await self._connection.call(self._connection.queues.Peek, request)
        return list(response.messages)

    async def withdraw(self, message_ids: Sequence[str]) -> list[pb.WithdrawResult]:
        """Cancels messages that wait or are delayed; one result per id, in order."""
        request = pb.WithdrawRequest(queue=self.name, message_ids=message_ids)
        response: pb.WithdrawResponse = await self._connection.call(self._connection.queues.Withdraw, request)
        return list(response.results)

    async def close(self, *, wait: timedelta = _CLOSE_WAIT) -> QueueState:
        """Closes the queue for good: no more puts, and consumers drain what is left.

        Waits up to `wait` for a foreign producer. Not idempotent. Raises QueueNotFound, QueueClosed, RoleInUse.
        """
        request = pb.CloseRequest(queue=self.name, wait=whole_milliseconds(wait))
        response: pb.CloseResponse = await self._connection.call(self._connection.queues.Close, request, wait=wait)
        return response.queue

    async def delete(self, *, wait: timedelta = _DELETE_WAIT) -> None:
        """Deletes the queue with all its messages and wakes everybody who waits.

        Waits up to `wait` for foreign clients. Raises QueueNotFound; RoleInUse: it is gone, and calling again resumes.
        """
        request = pb.DeleteRequest(queue=self.name, wait=whole_milliseconds(wait))
        await self._connection.call(self._connection.queues.Delete, request, wait=wait)

    async def purge(self, *, dead: bool = False) -> admin_pb.PurgeResponse:
        """Removes what waits or is delayed, and the dead if asked; leased messages stay. Raises QueueNotFound."""
        request = admin_pb.PurgeRequest(queue=self.name, dead=dead)
        return await self._connection.call(self._connection.admin.Purge, request)

    async def repair(self, *, confirm_holder: str = "") -> admin_pb.RepairResponse:
        """Tells what a foreign client that died left behind, and puts it right if its name is confirmed.

        Raises QueueNotFound, and RoleInUse if the role's holder is not the one confirmed.
        """
        request = admin_pb.RepairRequest(queue=self.name, confirm_holder=confirm_holder)
        return await self._connection.call(self._connection.admin.Repair, request)

    async def policy_lease(self) -> timedelta:
        """How long a lease lasts by the policy, as it was when this handle first asked. Raises QueueNotFound."""
        if self._policy_lease is None:
            self._policy_lease = (await self.describe()).policy.lease.ToTimedelta()
        return self._policy_lease

    def _put_request(
        self,
        messages: Sequence[Message],
        wait: timedelta | None,
        on_duplicate: _batch.OnDuplicateName,
        producer: str,
    ) -> pb.PutRequest:
        return pb.PutRequest(
            queue=self.name,
            messages=messages,
            wait=whole_milliseconds(wait) if wait is not None else None,
            on_duplicate=_batch.on_duplicate_value(on_duplicate),
            producer=producer,
        )


def _refuse_rest(results: list[PutResult], messages: Sequence[Message], error: HeadwayError) -> list[PutResult]:
    """The results, with `error` for each message that was not sent because those before it found no room."""
    status = Status(code=error.code.value[0], message=str(error), reason=error.reason, metadata=error.metadata)
    return results + [PutResult(id=m.id, error=status) for m in messages[len(results) :]]
