"""What can go wrong, as classes: one for each reason, below one for each code.

    HeadwayError
    ├── NotFound
    │   ├── QueueNotFound
    │   │   └── QueueDeleted
    │   ├── MessageNotFound
    │   ├── LeaseGone
    │   └── PlaceLost
    ├── AlreadyExists
    │   ├── QueueExists
    │   └── DuplicateMessage
    ├── PreconditionFailed
    │   ├── QueueClosed
    │   ├── QueueDrained
    │   ├── QueuePaused
    │   ├── RoleInUse
    │   ├── LeaseStale
    │   ├── MessageLeased
    │   └── MessageFinished
    ├── Exhausted
    │   ├── QueueFull
    │   ├── PollTooSoon
    │   ├── StoreFull
    │   ├── Overloaded
    │   └── QuotaExceeded
    ├── InvalidArgument
    │   ├── NameRefused
    │   ├── FieldInvalid
    │   └── TooLarge
    ├── ClientClosed
    ├── Unavailable
    │   ├── StoreUnavailable
    │   ├── OutcomeUnknown
    │   ├── NotDurable
    │   └── ShuttingDown
    ├── DeadlineExceeded
    ├── Unauthenticated
    ├── PermissionDenied
    ├── NotImplementedByService
    └── Internal

Made by tools/error_kinds.py from proto/headway/v1/error_reason.proto: do not edit.
"""

from dataclasses import dataclass

from grpc import StatusCode as Code

from headway.core.error import KINDS
from headway.core.error import HeadwayError as HeadwayError  # noqa: PLC0414 - the root is had from here, too
from headway.v1.error_reason_pb2 import ErrorReason


@dataclass(eq=False)
class NotFound(HeadwayError):
    """Something that was named does not exist."""

    code: Code = Code.NOT_FOUND
    is_passing = False


@dataclass(eq=False)
class QueueNotFound(NotFound):
    """No queue has this name. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND


@dataclass(eq=False)
class MessageNotFound(NotFound):
    """No message with this id is known to the queue. Metadata: `queue`, `id`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND


@dataclass(eq=False)
class LeaseGone(NotFound):
    """The lease was never given, or its message or its queue is no more. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_LEASE_GONE


@dataclass(eq=False)
class PlaceLost(NotFound):
    """The place in line is no longer held. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_PLACE_LOST


@dataclass(eq=False)
class QueueDeleted(QueueNotFound):
    """The queue was deleted while the call waited, or its deletion has begun and is not finished. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_DELETED


@dataclass(eq=False)
class AlreadyExists(HeadwayError):
    """Something of this name is there already."""

    code: Code = Code.ALREADY_EXISTS


@dataclass(eq=False)
class QueueExists(AlreadyExists):
    """Create named a queue that stands with another policy. Metadata: `queue`, `fields` (the policy fields that differ,
    comma separated).
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_EXISTS


@dataclass(eq=False)
class DuplicateMessage(AlreadyExists):
    """A message with this id is in the queue, or was within its dedupe window. Metadata: `queue`, `id`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE


@dataclass(eq=False)
class PreconditionFailed(HeadwayError):
    """The queue's state does not allow it."""

    code: Code = Code.FAILED_PRECONDITION


@dataclass(eq=False)
class QueueClosed(PreconditionFailed):
    """The queue is closed: it takes no new messages, and it cannot be closed again. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_CLOSED
    is_passing = False


@dataclass(eq=False)
class QueueDrained(PreconditionFailed):
    """The queue is closed and nothing waits, is delayed or is leased: there will never be another message. Metadata:
    `queue`.
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_DRAINED
    is_passing = False


@dataclass(eq=False)
class QueuePaused(PreconditionFailed):
    """The queue is paused by an administrator: it takes messages, but hands none out. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_PAUSED


@dataclass(eq=False)
class RoleInUse(PreconditionFailed):
    """A foreign pressure client holds the role that the call needs, and did not give it back in time. Metadata:
    `queue`, `role` ("producer" or "consumer"), `holder` (the name that the client left).
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_ROLE_IN_USE


@dataclass(eq=False)
class LeaseStale(PreconditionFailed):
    """Somebody newer holds the message, or it was replaced. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_LEASE_STALE


@dataclass(eq=False)
class MessageLeased(PreconditionFailed):
    """The message is being worked on: only the holder of its lease has a say. Metadata: `queue`, `id`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_MESSAGE_LEASED


@dataclass(eq=False)
class MessageFinished(PreconditionFailed):
    """The message is finished, so it is too late. Metadata: `queue`, `id`, `outcome` (DONE, DEAD, WITHDRAWN, EXPIRED,
    or UNKNOWN if a foreign client took it).
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_MESSAGE_FINISHED

    @property
    def outcome(self) -> str:
        """How it ended; "" if it is not told."""
        return self.metadata.get("outcome", "")


@dataclass(eq=False)
class Exhausted(HeadwayError):
    """There is no room, or too much work, right now."""

    code: Code = Code.RESOURCE_EXHAUSTED


@dataclass(eq=False)
class QueueFull(Exhausted):
    """The queue is at its bound and no room came within `wait`. Metadata: `queue`, `bound`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUEUE_FULL


@dataclass(eq=False)
class PollTooSoon(Exhausted):
    """A poll came before poll_min; the place is kept and a strike counted. Metadata: `queue`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_POLL_TOO_SOON


@dataclass(eq=False)
class StoreFull(Exhausted):
    """The store is out of memory: nothing new is taken, settling still works. Nothing happened."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_STORE_FULL


@dataclass(eq=False)
class Overloaded(Exhausted):
    """The service has more work than it can take. Nothing happened. Metadata: `limit` (which one, as GetServerInfo
    names it; `write_timeout`, a setting, if a request came too slowly or replies were not read), unless it is that
    calls come faster than they are done, or a connection's bound on streams of health and reflection.
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_OVERLOADED


@dataclass(eq=False)
class QuotaExceeded(Exhausted):
    """The caller's namespace has used up a quota. Nothing happened. Metadata: `quota` (which), `limit` (its number)."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_QUOTA_EXCEEDED


@dataclass(eq=False)
class InvalidArgument(HeadwayError):
    """Something that was given is not acceptable; `violations` tell what."""

    code: Code = Code.INVALID_ARGUMENT
    is_passing = False


@dataclass(eq=False)
class NameRefused(InvalidArgument):
    """The queue name is not acceptable; the field violation says why. Metadata: `field`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_NAME_REFUSED


@dataclass(eq=False)
class FieldInvalid(InvalidArgument):
    """A field is out of its range or missing; the field violations say which and why. Metadata: `field`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_FIELD_INVALID


@dataclass(eq=False)
class TooLarge(InvalidArgument):
    """A message, or a batch, is larger than the service accepts. Metadata: `field`, `limit`, `size`."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_TOO_LARGE


@dataclass(eq=False)
class ClientClosed(HeadwayError):
    """This side closed the connection: it may have happened, and nothing more does."""

    code: Code = Code.CANCELLED
    is_passing = False


@dataclass(eq=False)
class Unavailable(HeadwayError):
    """Not served. Without a reason: the connection failed, so it may have happened."""

    code: Code = Code.UNAVAILABLE


@dataclass(eq=False)
class StoreUnavailable(Unavailable):
    """The store did not do it, and nothing happened. Metadata: `cause` (one word: REFUSED, SILENT, LOADING, READONLY,
    MISCONF, BUSY, CLUSTERDOWN, LAYOUT or STORE).
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_STORE_UNAVAILABLE


@dataclass(eq=False)
class OutcomeUnknown(Unavailable):
    """The store was asked and its answer was lost: the call may or may not have taken effect. Safe to repeat with the
    same ids and leases. Metadata: `cause`.
    """

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN


@dataclass(eq=False)
class NotDurable(Unavailable):
    """The store has too few replicas to take writes, or keeps less than the service demands of it. Nothing happened."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_NOT_DURABLE


@dataclass(eq=False)
class ShuttingDown(Unavailable):
    """This service process is going down; ask another, or again. Nothing happened."""

    reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_SHUTTING_DOWN


@dataclass(eq=False)
class DeadlineExceeded(HeadwayError):
    """No answer came in time: it may or may not have happened."""

    code: Code = Code.DEADLINE_EXCEEDED


@dataclass(eq=False)
class Unauthenticated(HeadwayError):
    """The caller gave no credentials, or none that hold; or they held no longer while a stream was open or a Get or Put
    waited. No metadata.
    """

    code: Code = Code.UNAUTHENTICATED
    is_passing = False


@dataclass(eq=False)
class PermissionDenied(HeadwayError):
    """The caller's role does not allow the call. Metadata: `queue` (if the call is about one), `roles` (those that
    would allow it, any of them, comma separated). Neither if what the caller may do changed while a stream was open
    or a Get or Put waited.
    """

    code: Code = Code.PERMISSION_DENIED
    is_passing = False


@dataclass(eq=False)
class NotImplementedByService(HeadwayError):
    """The call, or a field it sets, is not served by this version. Metadata: `field`, or `method`."""

    code: Code = Code.UNIMPLEMENTED
    is_passing = False


@dataclass(eq=False)
class Internal(HeadwayError):
    """A defect of the service. Metadata: `incident` (also in the service's log)."""

    code: Code = Code.INTERNAL


KINDS[Code.NOT_FOUND] = NotFound
KINDS[Code.ALREADY_EXISTS] = AlreadyExists
KINDS[Code.FAILED_PRECONDITION] = PreconditionFailed
KINDS[Code.RESOURCE_EXHAUSTED] = Exhausted
KINDS[Code.INVALID_ARGUMENT] = InvalidArgument
KINDS[Code.CANCELLED] = Unavailable
KINDS[Code.UNAVAILABLE] = Unavailable
KINDS[Code.DEADLINE_EXCEEDED] = DeadlineExceeded
KINDS[Code.UNAUTHENTICATED] = Unauthenticated
KINDS[Code.PERMISSION_DENIED] = PermissionDenied
KINDS[Code.UNIMPLEMENTED] = NotImplementedByService
KINDS[Code.INTERNAL] = Internal
KINDS[ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND] = QueueNotFound
KINDS[ErrorReason.ERROR_REASON_QUEUE_EXISTS] = QueueExists
KINDS[ErrorReason.ERROR_REASON_QUEUE_CLOSED] = QueueClosed
KINDS[ErrorReason.ERROR_REASON_QUEUE_DRAINED] = QueueDrained
KINDS[ErrorReason.ERROR_REASON_QUEUE_FULL] = QueueFull
KINDS[ErrorReason.ERROR_REASON_QUEUE_DELETED] = QueueDeleted
KINDS[ErrorReason.ERROR_REASON_QUEUE_PAUSED] = QueuePaused
KINDS[ErrorReason.ERROR_REASON_ROLE_IN_USE] = RoleInUse
KINDS[ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND] = MessageNotFound
KINDS[ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE] = DuplicateMessage
KINDS[ErrorReason.ERROR_REASON_LEASE_STALE] = LeaseStale
KINDS[ErrorReason.ERROR_REASON_LEASE_GONE] = LeaseGone
KINDS[ErrorReason.ERROR_REASON_POLL_TOO_SOON] = PollTooSoon
KINDS[ErrorReason.ERROR_REASON_PLACE_LOST] = PlaceLost
KINDS[ErrorReason.ERROR_REASON_NAME_REFUSED] = NameRefused
KINDS[ErrorReason.ERROR_REASON_FIELD_INVALID] = FieldInvalid
KINDS[ErrorReason.ERROR_REASON_TOO_LARGE] = TooLarge
KINDS[ErrorReason.ERROR_REASON_STORE_UNAVAILABLE] = StoreUnavailable
KINDS[ErrorReason.ERROR_REASON_STORE_FULL] = StoreFull
KINDS[ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN] = OutcomeUnknown
KINDS[ErrorReason.ERROR_REASON_NOT_DURABLE] = NotDurable
KINDS[ErrorReason.ERROR_REASON_SHUTTING_DOWN] = ShuttingDown
KINDS[ErrorReason.ERROR_REASON_OVERLOADED] = Overloaded
KINDS[ErrorReason.ERROR_REASON_UNAUTHENTICATED] = Unauthenticated
KINDS[ErrorReason.ERROR_REASON_PERMISSION_DENIED] = PermissionDenied
KINDS[ErrorReason.ERROR_REASON_QUOTA_EXCEEDED] = QuotaExceeded
KINDS[ErrorReason.ERROR_REASON_INTERNAL] = Internal
KINDS[ErrorReason.ERROR_REASON_NOT_IMPLEMENTED] = NotImplementedByService
KINDS[ErrorReason.ERROR_REASON_MESSAGE_LEASED] = MessageLeased
KINDS[ErrorReason.ERROR_REASON_MESSAGE_FINISHED] = MessageFinished
