"""Everything that can be refused or go wrong, as exceptions without any transport in them.

    HeadwayError
    ├── InvalidInput: NameRefused, FieldInvalid, TooLarge
    ├── NotThere: QueueNotFound, QueueDeleted, MessageNotFound, LeaseGone, PlaceLost
    ├── AlreadyThere: QueueExists, DuplicateMessage
    ├── WrongState: QueueClosed, QueueDrained, QueuePaused, RoleInUse, LeaseStale
    ├── Exhausted: QueueFull, StoreFull, PollTooSoon, Overloaded, QuotaExceeded
    ├── Unavailable: StoreUnavailable (and its kind NotDurable), OutcomeUnknown, ShuttingDown
    ├── NotAllowed: Unauthenticated, PermissionDenied
    ├── NotServed
    └── InternalError

`rpc/status.py` maps the reasons to status codes, once. Texts are for people and hold nothing of a message but its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class Reason(IntEnum):
    """Why something was refused. Names and numbers are those of `headway.v1.ErrorReason`; a test compares them."""

    UNSPECIFIED = 0
    QUEUE_NOT_FOUND = 1
    QUEUE_EXISTS = 2
    QUEUE_CLOSED = 3
    QUEUE_DRAINED = 4
    QUEUE_FULL = 5
    QUEUE_DELETED = 6
    QUEUE_PAUSED = 7
    ROLE_IN_USE = 8
    MESSAGE_NOT_FOUND = 9
    DUPLICATE_MESSAGE = 10
    LEASE_STALE = 11
    LEASE_GONE = 12
    POLL_TOO_SOON = 13
    PLACE_LOST = 14
    NAME_REFUSED = 15
    FIELD_INVALID = 16
    TOO_LARGE = 17
    STORE_UNAVAILABLE = 18
    STORE_FULL = 19
    OUTCOME_UNKNOWN = 20
    NOT_DURABLE = 21
    SHUTTING_DOWN = 22
    OVERLOADED = 23
    UNAUTHENTICATED = 24
    PERMISSION_DENIED = 25
    QUOTA_EXCEEDED = 26
    INTERNAL = 27
    NOT_IMPLEMENTED = 28
    MESSAGE_LEASED = 29
    MESSAGE_FINISHED = 30


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that is not as it must be: its path in the request, and what is wrong with it."""

    field: str
    description: str


class HeadwayError(Exception):
    """The root. `metadata` holds what the reason promises; `retry_after_ms` is set where asking again makes sense."""

    reason: ClassVar[Reason] = Reason.INTERNAL
    default_retry_after_ms: ClassVar[int | None] = None

    def __init__(
        self,
        text: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_ms = self.default_retry_after_ms if retry_after_ms is None else retry_after_ms


def forget_way(error: BaseException) -> None:
    """Forgets where it, and what it came of, were raised; to be called when it has been told and, if need be, logged.

    That way leads through the calls that waited for it, and some of those still know what they waited for, and by that
    the error. Such a ring only the garbage collector frees, and it comes seldom to what is as old as calls are that
    fail because the store is silent.
    """
    at: BaseException | None = error
    while at is not None and at.__traceback__ is not None:  # one that has none was here before
        at.__traceback__ = None
        at = at.__cause__ or at.__context__


class InvalidInput(HeadwayError):
    """The request is wrong in itself; the same again fails again."""


class NameRefused(InvalidInput):
    """A queue name that could collide with another queue's keys, or is not a proper name."""

    reason = Reason.NAME_REFUSED


class FieldInvalid(InvalidInput):
    """A field is missing or out of its range."""

    reason = Reason.FIELD_INVALID


class TooLarge(InvalidInput):
    """A message or a batch is larger than accepted."""

    reason = Reason.TOO_LARGE


class NotThere(HeadwayError):
    """What was named does not exist (any more)."""


class QueueNotFound(NotThere):
    """No queue has this name."""

    reason = Reason.QUEUE_NOT_FOUND


class QueueDeleted(NotThere):
    """The queue was deleted while the call waited, or is being deleted."""

    reason = Reason.QUEUE_DELETED

    @classmethod
    def of(cls, queue: str) -> QueueDeleted:
        """A queue that was there is no more, or another one has its name."""
        return cls(f"queue {queue!r} was deleted", metadata={"queue": queue})


class MessageNotFound(NotThere):
    """No message has this id."""

    reason = Reason.MESSAGE_NOT_FOUND


class LeaseGone(NotThere):
    """The lease was never given, or its message is no more."""

    reason = Reason.LEASE_GONE


class PlaceLost(NotThere):
    """The place in line is no longer held."""

    reason = Reason.PLACE_LOST


class AlreadyThere(HeadwayError):
    """What was to be made exists."""


class QueueExists(AlreadyThere):
    """The queue stands with another policy."""

    reason = Reason.QUEUE_EXISTS


class DuplicateMessage(AlreadyThere):
    """A message with this id is known."""

    reason = Reason.DUPLICATE_MESSAGE


class WrongState(HeadwayError):
    """The queue or the lease is in a state that does not allow it."""


class MessageLeased(WrongState):
    """Somebody works on the message: only its lease has a say."""

    reason = Reason.MESSAGE_LEASED


class MessageFinished(WrongState):
    """The message is finished: it is too late."""

    reason = Reason.MESSAGE_FINISHED


class QueueClosed(WrongState):
    """The queue is closed."""

    reason = Reason.QUEUE_CLOSED


class QueueDrained(WrongState):
    """The queue is closed and nothing is left."""

    reason = Reason.QUEUE_DRAINED


class QueuePaused(WrongState):
    """The queue is paused."""

    reason = Reason.QUEUE_PAUSED


class RoleInUse(WrongState):
    """A foreign client holds the role."""

    reason = Reason.ROLE_IN_USE

    @classmethod
    def of(cls, queue: str, *, role: str, holder: str) -> RoleInUse:
        """With the metadata that the reason promises; `holder` is empty for a client that left no name."""
        return cls(
            f"the {role} role of queue {queue!r} is held by {holder or 'a client that left no name'}",
            metadata={"queue": queue, "role": role, "holder": holder},
        )


class LeaseStale(WrongState):
    """Somebody newer holds the message."""

    reason = Reason.LEASE_STALE


class Exhausted(HeadwayError):
    """There is too much of something now; later it may go."""

    default_retry_after_ms = 1_000


class QueueFull(Exhausted):
    """The queue is at its bound."""

    reason = Reason.QUEUE_FULL


class StoreFull(Exhausted):
    """The store is out of memory."""

    reason = Reason.STORE_FULL


class PollTooSoon(Exhausted):
    """A poll came before its time."""

    reason = Reason.POLL_TOO_SOON


class Overloaded(Exhausted):
    """The service has more work than it can take."""

    reason = Reason.OVERLOADED


class QuotaExceeded(Exhausted):
    """A quota is used up."""

    reason = Reason.QUOTA_EXCEEDED


class Unavailable(HeadwayError):
    """The service cannot do it now."""

    default_retry_after_ms = 500


class StoreUnavailable(Unavailable):
    """The store did not do it; nothing happened."""

    reason = Reason.STORE_UNAVAILABLE


class NewerLayout(StoreUnavailable):
    """A newer version has written the queue in a way that this one does not know; nothing happened."""


class OutcomeUnknown(Unavailable):
    """The store's answer was lost, or could not be passed on; it may have happened."""

    reason = Reason.OUTCOME_UNKNOWN

    def as_undone(self) -> StoreUnavailable:
        """To whoever only looked, or whose next try is the same step: whether it happened does not matter to them."""
        cause = {"SILENT": "SILENT", "RESET": "REFUSED"}.get(self.metadata.get("cause", ""), "STORE")
        return StoreUnavailable("the store did not answer", metadata={"cause": cause})


class NotDurable(StoreUnavailable):
    """The store cannot promise the durability asked for; nothing happened. Who waits, waits until it can."""

    reason = Reason.NOT_DURABLE
    default_retry_after_ms = 1_000  # so often replicas tell that they follow: behind a failover it takes some of that


class ShuttingDown(Unavailable):
    """This process is going down."""

    reason = Reason.SHUTTING_DOWN
    default_retry_after_ms = 100


class NotAllowed(HeadwayError):
    """The caller may not."""


class Unauthenticated(NotAllowed):
    """No credentials that hold."""

    reason = Reason.UNAUTHENTICATED


class PermissionDenied(NotAllowed):
    """The role does not allow it."""

    reason = Reason.PERMISSION_DENIED


class NotServed(HeadwayError):
    """This version does not serve the call, or the field."""

    reason = Reason.NOT_IMPLEMENTED


class InternalError(HeadwayError):
    """A defect."""

    reason = Reason.INTERNAL
