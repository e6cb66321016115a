"""Queues of slots: messages that are never done, but lent to one holder after the other."""

from datetime import timedelta

from headway._lease import Lease
from headway._queue import Queue
from headway.core.error import from_status
from headway.core.errors import QueueExists
from headway.v1.message_pb2 import Message

SLOT_HEADER = "headway-slot"
SLOT_VARIABLE = "HEADWAY_SLOT"
_NO_WINDOW = timedelta(0)  # a slot that somebody acked by mistake may be put again at once


def slot_of(lease: Lease) -> str:
    """The number of the slot that a message is, from 1; "" if it is an ordinary message."""
    return lease.headers.get(SLOT_HEADER, "")


async def make_slots(queue: Queue, count: int) -> None:
    """Makes the queue with `count` slots if there is none, and puts back what slots are missing.

    A slot is a message with an id and a header of its own; the queue's limit says how many there are, so that an
    operator can change it while they are held. Idempotent, whoever else does the same. Raises QueueExists if it
    stands with another number of slots, or was not made for slots.
    """
    try:
        state = (await queue.create(limit=count, dedupe_window=_NO_WINDOW)).queue
    except QueueExists as error:
        state = await queue.describe()
        if state.policy.dedupe_window.ToTimedelta() != _NO_WINDOW:
            text = f"the queue {queue.name!r} stands already and was not made for slots"
        elif state.policy.limit != count:
            text = f"{queue.name!r} has {state.policy.limit} slots, not {count}; change that by its limit"
        else:
            text = ""  # it differs in what is none of our business
        if text:
            raise QueueExists(text, code=error.code, reason=error.reason, metadata=error.metadata) from error
    counts = state.counts
    if counts.length + counts.leased + counts.delayed >= count:
        return
    slots = [Message(id=f"slot-{number}", headers={SLOT_HEADER: str(number)}) for number in range(1, count + 1)]
    for result in await queue.put_many(slots, on_duplicate="keep"):
        if result.HasField("error"):
            raise from_status(result.error)
