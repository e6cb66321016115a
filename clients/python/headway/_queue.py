"""One queue, seen by a client: each call of the service that names a queue, and the working loops over it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Unpack

from headway import _batch, _work
from headway._fetch import Attempt, get_request
from headway._lease import Lease
from headway._policy import PolicyFields, build_policy, update_mask
from headway._producing import Producer
from headway._runner import Handler
from headway._settling import Settling
from headway._stand import Stand
from headway.core.connecting import span
from headway.core.error import HeadwayError, from_status
from headway.core.errors import QueueFull
from headway.core.trace import has_span, traced
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery, Message, PutResult, Status
from headway.v1.queue_pb2 import Policy
from headway.v1.queue_pb2 import Queue as QueueState

if TYPE_CHECKING:
    from headway._client import Client

_CLOSE_SECONDS = 1.0  # what the service waits at most if nothing is said; the deadline must be behind it
_DELETE_SECONDS = 5.0
_LINGER = timedelta(milliseconds=2)


class Queue(Settling):
    """A handle on the queue of one name; making it calls nothing. Its methods are the service's calls.

    Every call but `redrive` and those that watch answers within the client's `call_timeout` plus its own `wait`, and
    raises HeadwayError: beside what is named at a method, NameRefused, Unavailable and DeadlineExceeded can befall any.
    """

    def __init__(self, client: "Client", name: str) -> None:
        super().__init__(client, name)
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

        `delay` is a span from now or an instant. After `time_to_live` (default: the policy's) it is not delivered any
        more. A full queue is waited for up to `wait` (default: not at all). With an `id` it is idempotent and repeated
        after a lost answer. An id that is known: "reject" raises, "keep" answers `deduplicated` (and `body_differs` if
        the one kept is another), "replace" takes its place and makes its lease stale. Raises QueueNotFound,
        QueueClosed, QueueFull, DuplicateMessage, RoleInUse, TooLarge, StoreFull.
        """
        if isinstance(payload, Message):
            if id or headers or delay is not None or time_to_live is not None:
                raise TypeError("a Message carries its own id, headers and times")
            message = payload
        else:
            message = _batch.make_message(payload, id=id, headers=headers, when=delay, time_to_live=time_to_live)
        # What the service takes is asked for only where it may matter: once, for a client that traces.
        most_bytes = (await self.client.limits()).max_message_bytes if has_span() else 0
        request = self._put_request([traced(message, most_bytes)], wait, on_duplicate, producer)
        result = (await _batch.send_batch(self._connection, request)).results[0]
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

        Answers one result per message, in order; a message that was refused has `error` set. Once messages find no
        room, or are refused for what passes, the batches behind them are not sent, and answered likewise. Raises
        QueueFull if not even one was accepted; whatever else a batch fails with is raised with the earlier batches'
        results as `error.results`.
        """
        plain = [m if isinstance(m, Message) else _batch.make_message(m) for m in messages]
        results: list[PutResult] = []
        if not plain:
            return results
        limits = await self.client.limits()
        made = [traced(message, limits.max_message_bytes) for message in plain]
        for batch in _batch.batches(made, limits):
            request = self._put_request(batch, wait, on_duplicate, producer)
            try:
                answer = await _batch.send_batch(self._connection, request)
            except QueueFull as error:
                if not results:
                    raise
                return _refuse_rest(results, made, error)
            except HeadwayError as error:
                error.results = results
                raise
            results.extend(answer.results)
            held_up = _batch.held_up_by(answer.results)
            if held_up is not None:
                return _refuse_rest(results, made, held_up)
        return results

    def producer(
        self,
        *,
        max_batch: int = 500,
        max_bytes: int = 1024 * 1024,
        linger: timedelta = _LINGER,
        max_in_flight: int = 4,
        on_duplicate: _batch.OnDuplicateName = "reject",
        makes_ids: bool = True,
        patience: timedelta | None = None,
    ) -> Producer:
        """Puts messages that come one by one in batches, on one stream, for the length of an `async with` block.

        max_batch, max_bytes: a batch of so many messages or bytes is sent; larger ones than the service takes are not
        made, whatever these say.
        linger: one that is not full is sent after so long; at once if nothing is on the way.
        max_in_flight: so many batches may have no answer yet; then `put` and `put_soon` wait.
        on_duplicate: as in `put`.
        makes_ids: messages without an id get one, so that they can be put again after a lost answer and are still put
        once. Without it they stay as they are, and one whose answer is lost raises OutcomeUnknown or Unavailable.
        patience: how long the service may be away before what waits fails, 0 being not at all; default the client's
        `call_timeout`.

        A stream that breaks is opened anew. A full queue is waited for. See `Producer` for its methods and what they
        raise; entering the block asks for the service's limits and raises what a call raises.
        """
        return Producer(
            self,
            max_batch=max_batch,
            max_bytes=max_bytes,
            linger=linger,
            max_in_flight=max_in_flight,
            on_duplicate=on_duplicate,
            makes_ids=makes_ids,
            patience=patience,
        )

    async def get(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta | None = None,
        lease: timedelta | None = None,
        consumer: str = "",
        ack: Sequence[str] = (),
        attempt_id: str = "",
    ) -> pb.GetResponse:
        """Leases up to `max_messages`, waiting up to `wait` (default: not at all) for the first; acks leases first.

        An empty answer is a result. The leases run `lease` (default: the policy's) and nothing keeps them alive: see
        `hold`, `lease`, `work` and `run`. If the call is cancelled the service gives back what it leased, unless the
        answer was on its way already: then that stays leased until it lapses. If its answer is lost it is made again
        under the same name, `attempt_id` (default: one of its own), and brings the same leases, which then may be older
        than the answer; name it to go on with that after an error, or after cancelling. Raises QueueNotFound,
        QueueDrained, QueueDeleted, QueuePaused, RoleInUse, but not if it acks.
        """
        request = get_request(
            self.name, max_messages, wait=wait, lease=lease, consumer=consumer, ack=ack, attempt_id=attempt_id
        )
        return await self._connection.call(self._connection.queues.Get, request)

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
        fetched = await Attempt(self).fetch(wait=wait, lease=lease, consumer=consumer)
        if not fetched.leases:
            yield None
            return
        async with fetched.leases[0] as held:
            yield held

    def work(
        self,
        *,
        concurrency: int = 1,
        prefetch: int = 0,
        lease: timedelta | None = None,
        consumer: str = "",
        by: _work.By = "stream",
    ) -> AsyncGenerator[Lease, None]:
        """Yields leases as messages come, at most `concurrency` unsettled at once; ends when the queue is drained.

        Use each as `async with lease:`, here or in a task of your own, or settle it explicitly within its span. Leaving
        the loop gives back what was not yielded, at once if it stands in `contextlib.aclosing`. While the service is
        away or busy it waits and goes on. Of `prefetch` and `by` the same is true as in `run`. Raises QueueNotFound,
        QueueDeleted and what is wrong with the arguments.
        """
        return _work.work(self, concurrency=concurrency, prefetch=prefetch, lease=lease, consumer=consumer, by=by)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        prefetch: int = 0,
        lease: timedelta | None = None,
        consumer: str = "",
        stop: asyncio.Event | None = None,
        drain: bool = False,
        by: _work.By = "stream",
    ) -> None:
        """Calls `handler` with a Lease for each message, `concurrency` at a time, until the queue is drained.

        Each lease is kept alive while its handler runs; then it is acked, unless the handler settled it. Bytes that a
        handler returns are the message's result, as of `Lease.ack`; whatever else it returns is not looked at. A
        handler that raises, or whose result is refused, gives its message to the queue's backoff. When `stop` is set it
        leases no more, finishes what it holds and returns; when it is cancelled the handlers are, and their messages
        are given back for free. With `drain` it also returns once nothing waits, is delayed or is leased. While the
        service is away or busy it waits and goes on, and says so in the log "headway". Raises QueueNotFound,
        QueueDeleted and what is wrong with the arguments, after finishing what it holds.

        handler: an `async def`, or whatever answers something to await; else TypeError is raised at its first message.
        What blocks the event loop keeps leases from being extended: give that to `asyncio.to_thread`.
        prefetch: so many messages more than `concurrency` may be leased ahead, so that a handler that is quick need not
        wait for the next; they are kept alive, and given back for free in the end.
        by: "stream" is one Consume stream, which owns the leases: when it breaks, or the service process goes down,
        they are given back at once, so somebody else may begin what the handlers are still doing (`Lease.is_lost`
        tells, and their acks are too late). "calls" is Get and Ack: slower by far when messages are quickly done, but
        leases live on without a connection. That is better for long work. It has no prefetch.
        """
        await _work.run(
            self,
            handler,
            concurrency=concurrency,
            prefetch=prefetch,
            lease=lease,
            consumer=consumer,
            stop=stop,
            drain=drain,
            by=by,
        )

    def stand(
        self,
        *,
        max_messages: int = 1,
        keep_standing: bool = False,
        lease: timedelta | None = None,
        consumer: str = "",
    ) -> Stand:
        """A place in the consumer line for the length of an `async with` block: tells it as it moves, then my turn.

        The turn brings up to `max_messages` leases, kept alive until they are settled or the block ends, which gives
        back for free what is not settled, and the place, at once. With `keep_standing` the next turn comes when all of
        them are settled, without losing the slot in between. See `Stand` for its methods and what they raise.
        """
        return Stand(self, consumer=consumer, max_messages=max_messages, keep_standing=keep_standing, lease=lease)

    async def close(self, *, wait: timedelta | None = None) -> QueueState:
        """Closes the queue for good: no more puts, and consumers drain what is left.

        Waits up to `wait` (default: 1 s) for a foreign producer. Not idempotent. Raises QueueNotFound, QueueClosed,
        RoleInUse.
        """
        request = pb.CloseRequest(queue=self.name, wait=span(wait))
        timeout = self._connection.call_seconds + _CLOSE_SECONDS if wait is None else 0.0
        response: pb.CloseResponse = await self._connection.call(
            self._connection.queues.Close, request, timeout=timeout
        )
        return response.queue

    async def delete(self, *, wait: timedelta | None = None) -> None:
        """Deletes the queue with all its messages and wakes everybody who waits.

        Waits up to `wait` (default: 5 s) for foreign clients. Raises QueueNotFound; RoleInUse: it is gone, and calling
        again resumes.
        """
        request = pb.DeleteRequest(queue=self.name, wait=span(wait))
        timeout = self._connection.call_seconds + _DELETE_SECONDS if wait is None else 0.0
        await self._connection.call(self._connection.queues.Delete, request, timeout=timeout)

    async def policy_lease(self) -> timedelta:
        """How long a lease by the policy lasted when this handle first asked. Raises QueueNotFound.

        Each delivery tells how long its own does, but for messages that a foreign client put before the service knew
        the queue: this is for them.
        """
        if self._policy_lease is None:
            lease = (await self.describe()).policy.lease.ToTimedelta()
            self._policy_lease = await self.client.longest_lease(lease)
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
            wait=span(wait),
            on_duplicate=_batch.on_duplicate_value(on_duplicate),
            producer=producer,
        )


def _refuse_rest(results: list[PutResult], messages: Sequence[Message], error: HeadwayError) -> list[PutResult]:
    """The results, with `error` for each message that was not sent because of those before it."""
    status = Status(code=error.code.value[0], message=str(error), reason=error.reason, metadata=error.metadata)
    return results + [PutResult(id=m.id, error=status) for m in messages[len(results) :]]
