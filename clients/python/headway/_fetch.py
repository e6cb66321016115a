"""Gets messages: names each Get, so that a lost answer is asked for again, and makes leases of what came."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from headway._lease import Lease
from headway.core.connecting import log, span
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue

_RETURN_SECONDS = 5.0  # what asking for something that is to be given back may take
_NO_SPAN = timedelta(0)  # of what is given back at once


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
        lease: timedelta | None,
        wait: timedelta | None = None,
        consumer: str = "",
        ack: Sequence[str] = (),
        on_end: Callable[[Lease], object] | None = None,
    ) -> Fetched:
        """Gets one message as a lease; see `Queue.get`. If it is cancelled what it may have leased is given back."""
        held_for = await self._queue.policy_lease() if lease is None else lease
        request = get_request(self._queue.name, wait=wait, lease=lease, consumer=consumer, ack=ack, attempt_id=self._id)
        connection = self._queue.client.connection
        try:
            answer = await connection.call(connection.queues.Get, request, on_lost=self._note_lost)
        except asyncio.CancelledError:  # its answer may be on the way
            self._note_lost()
            await self.return_lost(ack)
            raise
        is_old, self.is_again, self._id = self.is_again, False, uuid4().hex
        leases = [
            Lease(self._queue, each, span=held_for, by_policy=lease is None, is_old=is_old, on_end=on_end)
            for each in answer.deliveries
        ]
        return Fetched(leases=leases, settled=answer.settled)

    async def pause(self, seconds: float) -> None:
        """Waits between two Gets. If it is cancelled what the one before may have leased is given back."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await self.return_lost()
            raise

    async def return_lost(self, ack: Sequence[str] = ()) -> None:
        """Gives back for free what a Get of this name leased whose answer never came, or nobody takes any more; what it
        was to ack is acked.

        Takes a few seconds at most and raises no Exception: then the lease lapses by itself.
        """
        if not self.is_again:
            return
        self.is_again = False
        queue, connection = self._queue, self._queue.client.connection
        request = pb.GetRequest(queue=queue.name, ack=ack, attempt_id=self._id)
        try:
            answer = await connection.call(connection.queues.Get, request, timeout=_RETURN_SECONDS)
        except Exception as error:  # noqa: BLE001 - a clean-up: a token may be lacking for a while
            log.warning("queue %r: a message may be left leased until its lease lapses: %s", queue.name, error)
            return
        for each in answer.deliveries:
            await Lease(queue, each, span=_NO_SPAN).give_back(failed_with=None)

    def _note_lost(self) -> None:
        self.is_again = True
