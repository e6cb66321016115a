"""What settles and looks by name: the calls on leases and on messages that name them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from headway._spans import available
from headway._watching import Watching
from headway.core.connecting import span
from headway.core.error import from_status
from headway.core.errors import MessageFinished
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Progress, SettleResult

_WITHDRAWN = "WITHDRAWN"


class Settling(Watching):
    """The part of `Queue` that names leases and messages."""

    async def ack(self, leases: Sequence[str], *, result: bytes = b"") -> list[SettleResult]:
        """Settles leases for good; one result per lease, in order. Idempotent.

        ACKED and ALREADY_ACKED: it is done. STALE, GONE and DEAD: the lease has no say any more, for somebody newer has
        or had the message, it is no more, or it is dead.

        `result`, at most 4096 bytes, is kept with the messages' outcome for those who watch them.
        """
        request = pb.AckRequest(queue=self.name, leases=leases, result=result)
        return list((await self._connection.call(self._connection.queues.Ack, request)).results)

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
        `keep_attempt`. `reason`: at most 1024 bytes, kept with the message. If an answer was lost and the call made
        again, leases that the first try gave back are STALE. Raises RoleInUse, and nothing happened, if something is to
        be postponed by id and foreign clients held both roles for half of the call's time.
        """
        after, until = available(delay)
        request = pb.DelayRequest(
            queue=self.name,
            leases=leases,
            message_ids=message_ids,
            delay=after,
            until=until,
            reason=reason,
            keep_attempt=keep_attempt,
        )
        return list((await self._connection.call(self._connection.queues.Delay, request)).results)

    async def postpone(
        self, message_ids: Sequence[str], delay: timedelta | datetime | None = None, *, reason: str = ""
    ) -> list[SettleResult]:
        """Lets messages that wait or are delayed join the line later; one result per id, in order.

        `delay` is a span (0: now) or an instant; None is the queue's backoff. The results: DELAYED until
        `available_at`; RELEASED, it waits and now was asked for; STALE, somebody works on it; GONE, no such message
        waits or is delayed. Raises RoleInUse as `delay` does.
        """
        return await self.delay((), delay, message_ids=message_ids, reason=reason)

    async def extend(
        self, leases: Sequence[str], lease: timedelta | None = None, *, progress: float | None = None, note: str = ""
    ) -> list[SettleResult]:
        """Lets leases run `lease` (default: the policy's) from now; one result each: EXTENDED, STALE or GONE.

        `progress`, 0.0 to 1.0, and a `note` of at most 1024 bytes are told to those who watch the messages; without
        either, what was told before stays.
        """
        request = pb.ExtendRequest(
            queue=self.name,
            leases=leases,
            lease=span(lease),
            progress=Progress(fraction=progress or 0.0, note=note) if progress is not None or note else None,
        )
        return list((await self._connection.call(self._connection.queues.Extend, request)).results)

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
        """Cancels messages that wait or are delayed, wherever they stand; one result per id, in order.

        One that could not be withdrawn has `error` set: MESSAGE_LEASED, MESSAGE_FINISHED or MESSAGE_NOT_FOUND. Raises
        QueueNotFound.
        """
        request = pb.WithdrawRequest(queue=self.name, message_ids=message_ids)
        lost: list[bool] = []
        answer = await self._connection.call(
            self._connection.queues.Withdraw, request, on_lost=lambda: lost.append(True)
        )
        for result in answer.results if lost else ():  # what is withdrawn already was so by an earlier try
            if result.HasField("error") and _is_withdrawn(result):
                result.ClearField("error")
                result.withdrawn = True
        return list(answer.results)


def _is_withdrawn(result: pb.WithdrawResult) -> bool:
    error = from_status(result.error)
    return isinstance(error, MessageFinished) and error.outcome == _WITHDRAWN
