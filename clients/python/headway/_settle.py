"""Settles by name: leases, and messages that wait. Each call here is made again if its answer was lost."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from headway._channel import Connection
from headway._errors import MessageFinished, from_status
from headway._repeat import Answer, call_again
from headway._spans import available
from headway.v1 import queue_service_pb2 as pb

_WITHDRAWN = "WITHDRAWN"


def delay_request(
    queue: str,
    *,
    leases: Sequence[str] = (),
    message_ids: Sequence[str] = (),
    delay: timedelta | datetime | None,
    reason: str,
    keep_attempt: bool = False,
) -> pb.DelayRequest:
    """A Delay of these leases and messages."""
    span, until = available(delay) if delay is not None else (None, None)
    return pb.DelayRequest(
        queue=queue,
        leases=leases,
        message_ids=message_ids,
        delay=span,
        until=until,
        reason=reason,
        keep_attempt=keep_attempt,
    )


async def send_delay(connection: Connection, request: pb.DelayRequest) -> Answer[pb.DelayResponse]:
    """Makes one Delay. If it was made again, a lease that the first try gave back is STALE, DEAD or GONE."""
    return await call_again(connection, connection.queues.Delay, request)


async def send_ack(connection: Connection, request: pb.AckRequest) -> pb.AckResponse:
    """Makes one Ack. If it was made again, a lease that the first try acked is ALREADY_ACKED."""
    answer: Answer[pb.AckResponse] = await call_again(connection, connection.queues.Ack, request)
    return answer.response


async def send_extend(connection: Connection, request: pb.ExtendRequest) -> pb.ExtendResponse:
    """Makes one Extend."""
    answer: Answer[pb.ExtendResponse] = await call_again(connection, connection.queues.Extend, request)
    return answer.response


async def send_withdraw(connection: Connection, request: pb.WithdrawRequest) -> pb.WithdrawResponse:
    """Makes one Withdraw. If it was made again, what is withdrawn already counts as withdrawn by it."""
    answer: Answer[pb.WithdrawResponse] = await call_again(connection, connection.queues.Withdraw, request)
    if answer.is_again:
        for result in answer.response.results:
            if result.HasField("error") and _is_withdrawn(result):
                result.ClearField("error")
                result.withdrawn = True
    return answer.response


def _is_withdrawn(result: pb.WithdrawResult) -> bool:
    error = from_status(result.error)
    return isinstance(error, MessageFinished) and error.outcome == _WITHDRAWN
