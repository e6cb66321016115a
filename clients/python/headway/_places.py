"""What those who watch are told: the places of messages and of waiters, a queue's numbers, and how long a wait may be.

    Update  =  Waiting | Leased | Delayed | Finished     about one message, from `Queue.watch`
    Turn    =  Place | Granted                           about a waiter, from `Queue.stand`
    Blocked                                              about a producer, from `Queue.watch_blocked`

Every one tells the instant `as_of` when it was true, by the store's clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_pb2 import Queue as QueueState

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from headway._lease import Lease


class Outcome(StrEnum):
    """How a message ended, in the words of `headway.MessageFinished.outcome`."""

    DONE = "DONE"
    DEAD = "DEAD"
    WITHDRAWN = "WITHDRAWN"
    EXPIRED = "EXPIRED"
    DELETED = "DELETED"  # with its queue
    UNKNOWN = "UNKNOWN"  # no message of this id is known: never put, forgotten since, or taken by a foreign client


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """How long a wait is expected to be. Not `known`: there is no basis for saying so, and the spans are None."""

    known: bool
    p50: timedelta | None = None  # half of the waits are no longer
    p90: timedelta | None = None  # nine of ten are no longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message in line. `position` is its 1-based rank among the `length` messages that wait."""

    id: str
    as_of: datetime
    position: int
    length: int
    limit: int  # how many are worked on at once at most; 0: no limit
    poll_min: timedelta  # whoever asks anew instead of watching: earlier is not worth it,
    poll_max: timedelta  # and later is not sensible
    eta: Eta
    moved_back: bool  # the position rose: messages came back ahead of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A message that somebody works on. `progress`, 0.0 to 1.0, is None as long as nothing was told."""

    id: str
    as_of: datetime
    attempt: int
    progress: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """A message that will join the line at `available_at`."""

    id: str
    as_of: datetime
    available_at: datetime | None = None  # None: the service does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last word on a message: how it ended, the `result` of its Ack if it is done, why if it is dead."""

    id: str
    as_of: datetime | None  # None: nobody knows since when
    outcome: Outcome
    result: bytes = b""
    cause: str = ""


Update = Waiting | Leased | Delayed | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the consumer line. `position` is its 1-based rank among the `length` waiters of the queue."""

    as_of: datetime
    place: str  # as the service names it: opaque
    position: int
    length: int
    limit: int  # how many leases may be out at once; 0: no limit
    poll_min: timedelta  # as of Waiting
    poll_max: timedelta
    eta: Eta
    moved_back: bool  # the position rose: others came back ahead, or the place was lost, and this is a new one


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A waiter's turn: the leases are its own until it settles them or leaves."""

    as_of: datetime
    leases: "Sequence[Lease]"


Turn = Place | Granted


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Where a producer stands in the line of those that wait for room: the 1-based rank, among the `length` Puts that
    wait, of its Put that has waited longest. `position` 0: none of its Puts waits."""

    producer: str
    as_of: datetime
    position: int
    length: int
    poll_min: timedelta  # as of Waiting
    poll_max: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNumbers:
    """A queue at one instant, and the expected wait of a message that is put now."""

    queue: QueueState
    as_of: datetime
    eta: Eta


_OUTCOMES = {
    pb.OUTCOME_DONE: Outcome.DONE,
    pb.OUTCOME_DEAD: Outcome.DEAD,
    pb.OUTCOME_WITHDRAWN: Outcome.WITHDRAWN,
    pb.OUTCOME_EXPIRED: Outcome.EXPIRED,
    pb.OUTCOME_DELETED: Outcome.DELETED,
}


def read_instant(stamp: "Timestamp") -> datetime:
    """An instant of the store's clock."""
    return stamp.ToDatetime(UTC)


def read_eta(eta: message_pb2.Eta) -> Eta:
    """An expected wait; one that was not sent is not known."""
    if not eta.known:
        return Eta(known=False)
    return Eta(known=True, p50=eta.p50.ToTimedelta(), p90=eta.p90.ToTimedelta())


def read_update(answer: pb.WatchPositionResponse, before: Update | None) -> Update | None:
    """What an answer says of a message; None if it says nothing of one.

    `before` is what the stream before this one said of it last; None if this one has said something: then the service
    knows whether it moved back, and not who compares positions, for it may have joined the line anew meanwhile.
    """
    as_of = read_instant(answer.as_of)
    match answer.WhichOneof("event"):
        case "position":
            told = answer.position
            if told.state == pb.STATE_DELAYED:
                available_at = read_instant(told.available_at) if told.HasField("available_at") else None
                return Delayed(id=told.id, as_of=as_of, available_at=available_at)
            if told.state == pb.STATE_LEASED:
                return Leased(id=told.id, as_of=as_of, attempt=0, progress=None, note="")
            rose = isinstance(before, Waiting) and told.position > before.position
            return Waiting(
                id=told.id,
                as_of=as_of,
                position=told.position,
                length=told.length,
                limit=told.limit,
                poll_min=told.poll_min.ToTimedelta(),
                poll_max=told.poll_max.ToTimedelta(),
                eta=read_eta(told.eta),
                moved_back=told.moved_back or rose,
            )
        case "leased":
            work = answer.leased
            progress = work.progress.fraction if work.HasField("progress") else None
            return Leased(id=work.id, as_of=as_of, attempt=work.attempt, progress=progress, note=work.progress.note)
        case "finished":
            end = answer.finished
            outcome = _OUTCOMES.get(end.outcome, Outcome.UNKNOWN)
            since = as_of if answer.HasField("as_of") else None
            return Finished(id=end.id, as_of=since, outcome=outcome, result=end.result, cause=end.cause)
        case _:
            return None


def read_place(answer: pb.WatchPositionResponse, before: Place | None) -> Place:
    """A waiter's place; `before` is the last one that the stream before this one told, as of `read_update`."""
    told = answer.position
    return Place(
        as_of=read_instant(answer.as_of),
        place=told.place,
        position=told.position,
        length=told.length,
        limit=told.limit,
        poll_min=told.poll_min.ToTimedelta(),
        poll_max=told.poll_max.ToTimedelta(),
        eta=read_eta(told.eta),
        moved_back=told.moved_back or (before is not None and told.position > before.position),
    )


def read_blocked(answer: pb.WatchPositionResponse) -> Blocked:
    """A producer's place."""
    told = answer.position
    return Blocked(
        producer=told.producer,
        as_of=read_instant(answer.as_of),
        position=told.position,
        length=told.length,
        poll_min=told.poll_min.ToTimedelta(),
        poll_max=told.poll_max.ToTimedelta(),
    )


def subject_of(answer: pb.WatchPositionResponse) -> str:
    """The id of the message that an answer is about; "" if it is about a waiter."""
    kind = answer.WhichOneof("event")
    return getattr(answer, kind).id if kind in ("position", "leased", "finished") else ""
