"""Turns what scripts answer into the domain's values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from headwayd.domain.bare import BareMessages
from headwayd.domain.columns import FirstAcks
from headwayd.domain.errors import (
    DuplicateMessage,
    FieldInvalid,
    HeadwayError,
    MessageFinished,
    MessageLeased,
    MessageNotFound,
    QueueClosed,
    QueueDeleted,
    QueueDrained,
    QueueNotFound,
    Violation,
)
from headwayd.domain.joined import Joined, made_id
from headwayd.domain.model import (
    Counts,
    DeadMessage,
    NewMessage,
    Outcome,
    Peeked,
    Policy,
    PutCode,
    PutOutcome,
    Queue,
    Role,
    Settled,
    Settlement,
    WithdrawOutcome,
)
from headwayd.domain.places import LeasedMessage, Progress
from headwayd.store import frames
from headwayd.store.status import Status

_POLICY_TYPES = {f.name: {"float": float, "bool": bool}.get(str(f.type), int) for f in fields(Policy)}
_SETTLED = {one.name.encode(): one for one in Settled}
_POLICY_AT = 30
_BELOW = {
    "max_backoff_ms": Violation("policy.retry.max_backoff", "would be shorter than min_backoff"),
    "poll_max_ms": Violation("policy.poll.max", "would be shorter than base"),
}
WORTH_COLUMNS = 8  # messages: with fewer, columns cost more than they spare
_KEPT, _DIFFERS = "kept", "differs"  # put.lua's words for a message that stays: the same as the one given, or another
_CAUSES = {"a": "attempts", "x": "expired"}
# How a message ended, by the mark that scripts leave (lua/include/endings.lua).
OUTCOMES = {
    "a": Outcome.DONE,
    "w": Outcome.WITHDRAWN,
    "p": Outcome.WITHDRAWN,
    "m": Outcome.WITHDRAWN,
    "x": Outcome.EXPIRED,
    "dead": Outcome.DEAD,
}


NOT_TEXT = "\ufffd"  # stands in a text for each of what is not UTF-8 in the store


def text(value: bytes | int | str) -> str:
    """A reply's element as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def missing(status: bytes, queue: str) -> HeadwayError | None:
    """The error for a status that says there is no (open) queue; None for every other status."""
    metadata = {"queue": queue}
    match text(status):
        case Status.QUEUE_NOT_FOUND:
            return QueueNotFound(f"there is no queue {queue!r}", metadata=metadata)
        case Status.QUEUE_DELETED:
            return QueueDeleted(f"queue {queue!r} was deleted, or is being deleted", metadata=metadata)
        case Status.QUEUE_CLOSED:
            return QueueClosed(f"queue {queue!r} is closed", metadata=metadata)
        case Status.QUEUE_DRAINED:
            return QueueDrained(f"queue {queue!r} is closed and empty", metadata=metadata)
    return None


def contradiction(names: Iterable[str]) -> FieldInvalid:
    """The error for fields of a policy that would be below what they bound."""
    violations = [_BELOW[name] for name in names]
    return FieldInvalid(
        "the changed policy would contradict itself",
        metadata={"field": violations[0].field},
        violations=violations,
    )


def queue_of(name: str, report: Sequence[Any], durability: str) -> Queue:
    """A queue from the report of lua/include/report.lua."""
    numbers = [int(value) for value in (report[0], *report[2:24])]
    now, born, bound, closed, paused, length, leased, delayed, dead, returned, consumers, producers = numbers[:12]
    produced, produced_bytes, consumed, consumed_bytes = numbers[12:16]
    accepted, acked, expired, withdrawn, foreign, lapsed, oldest = numbers[16:23]
    values: dict[str, Any] = {
        field: convert(float(value))
        for (field, convert), value in zip(_POLICY_TYPES.items(), report[_POLICY_AT:], strict=True)
    }
    values["bound"] = bound
    return Queue(
        name=name,
        policy=Policy(**values),
        is_closed=bool(closed),
        is_paused=bool(paused),
        counts=Counts(
            length=length,
            leased=leased,
            delayed=delayed,
            dead=dead,
            returned=returned,
            consumers_waiting=consumers,
            producers_waiting=producers,
            produced_messages=produced,
            produced_bytes=produced_bytes,
            consumed_messages=consumed,
            consumed_bytes=consumed_bytes,
            accepted=accepted,
            acked=acked,
            expired=expired,
            withdrawn=withdrawn,
            taken_by_foreign=foreign,
            oldest_age_ms=max(0, now - oldest) if oldest else None,
            put_rate=float(report[24]),
            ack_rate=float(report[25]),
        ),
        created_at_ms=born,
        generation=text(report[1]),
        producer=Role(int(report[26]) == 1, text(report[27])),
        consumer=Role(int(report[28]) == 1, text(report[29])),
        durability=durability,
        at_ms=now,
        lapsed_count=lapsed,
    )


def duplicate(queue: str, message_id: str) -> DuplicateMessage:
    """A message with this id is known."""
    return DuplicateMessage(f"message {message_id!r} is known", metadata={"queue": queue, "id": message_id})


def put_outcomes(queue: str, reply: Sequence[Any], messages: Sequence[NewMessage]) -> Sequence[PutOutcome]:
    """The outcomes of those messages that were dealt with. `reply` is put.lua's, from its status on."""
    generation = text(reply[2])
    ticket, position, done = int(reply[6]), int(reply[7]), int(reply[8])
    exceptions: dict[int, tuple[str, str, int]] = {}
    for at in range(11, len(reply), 4):
        exceptions[int(reply[at])] = (text(reply[at + 1]), text(reply[at + 2]), int(reply[at + 3]))
    if not exceptions and type(messages) is BareMessages:
        return Joined(generation, ticket, position, done)
    given_ids = [message.id for message in messages]
    if not exceptions:
        return [
            PutOutcome(PutCode.QUEUED, given or made_id(generation, ticket + i), ticket + i, position + i)
            for i, given in enumerate(given_ids[:done])
        ]
    outcomes: list[PutOutcome] = []
    for index in range(1, done + 1):
        given = given_ids[index - 1]
        exception = exceptions.get(index)
        if exception is None:
            outcomes.append(PutOutcome(PutCode.QUEUED, given or made_id(generation, ticket), ticket, position))
            ticket += 1
            position += 1
            continue
        code, reference, at_position = exception
        if code == PutCode.DELAYED:
            outcomes.append(PutOutcome(PutCode.DELAYED, given or f"~{generation}-d{int(reference)}"))
        elif code in (_KEPT, _DIFFERS):
            kept_ticket = int(reference) if at_position else 0
            outcomes.append(PutOutcome(PutCode.KEPT, given, kept_ticket, at_position, body_differs=code == _DIFFERS))
        elif code in (PutCode.QUEUED, PutCode.REPLACED):
            outcomes.append(
                PutOutcome(PutCode(code), given or made_id(generation, int(reference)), int(reference), at_position)
            )
        else:
            outcomes.append(PutOutcome(PutCode.REFUSED, given, error=duplicate(queue, given)))
    return outcomes


def withdrawal(queue: str, message_id: str, status: bytes, mark: bytes) -> WithdrawOutcome:
    """What became of one id of a Withdraw."""
    metadata = {"queue": queue, "id": message_id}
    match text(status):
        case Status.WITHDRAWN:
            return WithdrawOutcome(message_id)
        case Status.LEASED:
            error: HeadwayError = MessageLeased(f"message {message_id!r} is being worked on", metadata=metadata)
        case Status.FINISHED:
            outcome = OUTCOMES.get(text(mark), Outcome.UNKNOWN)
            error = MessageFinished(
                f"message {message_id!r} is finished: {outcome.lower()}", metadata=metadata | {"outcome": str(outcome)}
            )
        case _:
            error = MessageNotFound(f"no message {message_id!r} is known", metadata=metadata)
    return WithdrawOutcome(message_id, error)


def progress_of(told: bytes) -> Progress | None:
    """What x:progress keeps: how far, a blank, a note; None if nothing was told."""
    if not told:
        return None
    fraction, _, note = text(told).partition(" ")
    return Progress(float(fraction), note)


def leased_messages(reply: Sequence[Any]) -> list[LeasedMessage]:
    """The messages of list_leased.lua's reply, which is given from its status on."""
    generation = text(reply[1])
    fields = iter(reply[2:])
    return [
        LeasedMessage(
            id=text(given) or text(made) or made_id(generation, int(ticket)),
            ticket=int(ticket),
            consumer=text(consumer),
            attempt=int(failures) + 1,
            leased_at_ms=int(leased_at) or None,
            lease_expires_at_ms=int(deadline),
            progress=progress_of(progress),
            put_at_ms=int(put_at) or None,
        )
        for ticket, failures, put_at, made, deadline, leased_at, consumer, progress, given in zip(
            *[fields] * 9, strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class Corpse:
    """A row of list_dead.lua: number 0 means that the name is not dead. `record` is lua/include/record.lua's."""

    number: int
    reference: bytes
    died_at_ms: int
    cause: str
    made_id: str
    failures: int
    put_at_ms: int
    replays: int
    error: bytes
    element: bytes


_RECORD = struct.Struct(">IQQBI20sH")
_NO_CORPSE = Corpse(0, b"", 0, "", "", 0, 0, 0, b"", b"")


def corpses(reply: Sequence[Any]) -> list[Corpse]:
    """The rows of list_dead.lua's reply, which is given from its status on."""
    found: list[Corpse] = []
    for at in range(3, len(reply), 6):
        number, reference, died_at, cause, made, both = reply[at : at + 6]
        if not int(number):
            found.append(_NO_CORPSE)
            continue
        length = int.from_bytes(both[:4])
        failures, put_at, _, _, replays, _, id_length = _RECORD.unpack_from(both, 4)
        found.append(
            Corpse(
                number=int(number),
                reference=reference,
                died_at_ms=int(died_at),
                cause=_CAUSES[text(cause)],
                made_id=text(made),
                failures=failures,
                put_at_ms=put_at,
                replays=replays,
                error=both[4 + _RECORD.size + id_length : 4 + length],
                element=both[4 + length :],
            )
        )
    return found


def dead_message(corpse: Corpse) -> DeadMessage:
    """A dead message as it is shown."""
    element = frames.read(corpse.element)
    return DeadMessage(
        id=element.id or corpse.made_id,
        payload=element.payload,
        headers=element.headers,
        failures=corpse.failures,
        died_at_ms=corpse.died_at_ms,
        cause=corpse.cause,
        last_error=text(corpse.error),
        replays=corpse.replays,
        put_at_ms=element.put_at_ms or corpse.put_at_ms or None,
    )


def settlement(
    lease: str, status: bytes, attempts: Any = 0, available_at: Any = 0, *, message_id: str = ""
) -> Settlement:
    """What became of one lease, or of one message named by id."""
    return Settlement(lease, _SETTLED[status], int(attempts), int(available_at) or None, message_id)


def acked(leases: Sequence[str], reply: Sequence[Any], start: int) -> tuple[Sequence[Settlement], int]:
    """What became of leases that were to be acked, and where the reply goes on. It tells only of those that were not
    acked at their first attempt: at `start` how many, then number, status and failures of each."""
    if not int(reply[start]) and len(leases) >= WORTH_COLUMNS:
        return FirstAcks(leases), start + 1
    settled = [Settlement(lease, Settled.ACKED) for lease in leases]
    end = start + 1 + 3 * int(reply[start])
    for at in range(start + 1, end, 3):
        index = int(reply[at]) - 1
        settled[index] = settlement(leases[index], reply[at + 1], reply[at + 2])
    return settled, end


def all_gone(leases: Sequence[str], message_ids: Sequence[str] = ()) -> list[Settlement]:
    """The leases and messages of a queue that is no more."""
    return [Settlement(lease, Settled.GONE) for lease in leases] + [
        Settlement("", Settled.GONE, id=name) for name in message_ids
    ]


def peeked(reply: Sequence[Any]) -> list[Peeked]:
    """The messages of peek.lua's reply, which is given from its status on. Without a generation no id can be made."""
    generation = text(reply[1])
    found: list[Peeked] = []
    for at in range(2, len(reply), 7):
        ticket, position, failures, put_at = (int(value) for value in reply[at : at + 4])
        element = frames.read(reply[at + 6])
        found.append(
            Peeked(
                id=element.id or text(reply[at + 4]) or (made_id(generation, ticket) if generation else ""),
                payload=element.payload,
                headers=element.headers,
                ticket=ticket,
                position=position,
                failures=failures,
                put_at_ms=element.put_at_ms or put_at or None,
                last_error=text(reply[at + 5]),
            )
        )
    return found
