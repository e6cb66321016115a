"""Gets messages: names each Get, so that a lost answer is asked for again, and makes leases of what came."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from headway._lease import Lease
from headway._repeat import Answer, call_again
from headway._spans import whole_milliseconds
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one Get brought: leases, and one result for each lease that it acked."""

    leases: Sequence[Lease]
    settled: Sequence[SettleResult]


def new_attempt_id() -> str:
    """A name for one Get that no other Get has."""
    return uuid4().hex


async def get(
    queue: "Queue",
    max_messages: int = 1,
    *,
    wait: timedelta | None,
    lease: timedelta | None,
    consumer: str,
    ack: Sequence[str] = (),
    attempt_id: str = "",
    on_lost: Callable[[], None] | None = None,
) -> Answer[pb.GetResponse]:
    """See `Queue.get`. `on_lost` is called when an answer is lost, before it is asked for again."""
    request = pb.GetRequest(
        queue=queue.name,
        max_messages=max_messages,
        wait=whole_milliseconds(wait) if wait is not None else None,
        lease=whole_milliseconds(lease) if lease is not None else None,
        consumer=consumer,
        ack=ack,
        attempt_id=attempt_id or new_attempt_id(),
    )
    connection = queue.client.connection
    return await call_again(connection, connection.queues.Get, request, wait=wait, on_lost=on_lost)


async def fetch(
    queue: "Queue",
    *,
    lease: timedelta,
    attempt_id: str,
    is_again: bool = False,
    wait: timedelta | None = None,
    consumer: str = "",
    ack: Sequence[str] = (),
    on_end: Callable[[], None] | None = None,
    on_lost: Callable[[], None] | None = None,
) -> Fetched:
    """Gets one message as a lease. `is_again`: an earlier Get of this name was made, and its answer did not come."""
    answer = await get(
        queue, wait=wait, lease=lease, consumer=consumer, ack=ack, attempt_id=attempt_id, on_lost=on_lost
    )
    is_old = is_again or answer.is_again
    leases = [Lease(queue, each, span=lease, is_old=is_old, on_end=on_end) for each in answer.response.deliveries]
    return Fetched(leases=leases, settled=answer.response.settled)
