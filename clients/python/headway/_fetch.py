"""Gets messages: names each Get, so that a lost answer is asked for again, and makes leases of what came."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from headway._lease import Lease
from headway.core.connecting import span
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue


def get_request(
    queue_name: str,
    max_messages: int = 1,
    *,
    wait: timedelta | None,
    lease: timedelta | None,
    consumer: str,
    ack: Sequence[str],
    attempt_id: str,
) -> pb.GetRequest:
    """See `Queue.get`; without an `attempt_id` it gets one that no other Get has."""
    return pb.GetRequest(
        queue=queue_name,
        max_messages=max_messages,
        wait=span(wait),
        lease=span(lease),
        consumer=consumer,
        ack=ack,
        attempt_id=attempt_id or uuid4().hex,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one Get brought: leases, and one result for each lease that it acked."""

    leases: Sequence[Lease]
    settled: Sequence[SettleResult]


class Attempt:
    """The name of a Get, kept until the Get is answered: what a lost answer leased is asked for, not left behind."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._id = uuid4().hex
        self.is_again = False  # a Get of this name may have leased something unknown to us

    async def fetch(
        self,
        *,
        lease: timedelta,
        wait: timedelta | None = None,
        consumer: str = "",
        ack: Sequence[str] = (),
        on_end: Callable[[], None] | None = None,
    ) -> Fetched:
        """Gets one message as a lease; see `Queue.get`."""
        request = get_request(self._queue.name, wait=wait, lease=lease, consumer=consumer, ack=ack, attempt_id=self._id)
        connection = self._queue.client.connection
        answer = await connection.call(connection.queues.Get, request, on_lost=self._note_lost)
        is_old, self.is_again, self._id = self.is_again, False, uuid4().hex
        leases = [Lease(self._queue, each, span=lease, is_old=is_old, on_end=on_end) for each in answer.deliveries]
        return Fetched(leases=leases, settled=answer.settled)

    def _note_lost(self) -> None:
        self.is_again = True
