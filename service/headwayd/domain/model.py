"""The nouns of Headway: policies, messages, leases, places in a batch, and what becomes of them.

Spans are whole milliseconds in fields that end in `_ms`; instants are milliseconds since 1970 by the store's clock in
fields that end in `_at_ms`. Everything here is a value: no behaviour beyond building and comparing. What is made for
every message or call is a tuple, because that takes a third of the time that a frozen dataclass does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import NamedTuple

from headwayd.domain.errors import HeadwayError, Reason
from headwayd.domain.limits import DAY_MS, MINUTE_MS, SECOND_MS, STORE_BUDGET_MS
from headwayd.domain.waiting import CutOff


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a queue behaves, every default filled in. Field meanings: `headway.v1.Policy`, `Retry` and `Poll`."""

    bound: int = 0
    limit: int = 0
    lease_ms: int = 30 * SECOND_MS
    max_attempts: int = 0
    min_backoff_ms: int = SECOND_MS
    max_backoff_ms: int = 5 * MINUTE_MS
    multiplier: float = 2.0
    jitter: float = 0.0
    time_to_live_ms: int = 0
    poll_base_ms: int = SECOND_MS
    poll_per_position_ms: int = 500
    poll_max_ms: int = MINUTE_MS
    poll_tolerance_ms: int = 500
    poll_strikes: int = 3
    place_grace_ms: int = 0
    turns: int = 0
    dedupe_window_ms: int = 60 * SECOND_MS
    remember_ms: int = 60 * SECOND_MS
    dead_letter_expired: bool = False

    def differing_fields(self, other: Policy) -> tuple[str, ...]:
        """The names of the fields in which the two differ, in the order of declaration."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))


POLICY_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Policy))
LONGEST_DEDUPE_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A queue's numbers at one instant. Meanings: `headway.v1.Counts`."""

    length: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    returned: int = 0
    consumers_waiting: int = 0
    producers_waiting: int = 0
    produced_messages: int = 0
    produced_bytes: int = 0
    consumed_messages: int = 0
    consumed_bytes: int = 0
    accepted: int = 0
    acked: int = 0
    expired: int = 0
    withdrawn: int = 0
    taken_by_foreign: int = 0
    oldest_age_ms: int | None = None
    put_rate: float = 0.0
    ack_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Role:
    """One of pressure's two roles: whether a foreign client holds it, and the name its last holder left."""

    is_taken: bool = False
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue as it stands at one instant."""

    name: str
    policy: Policy
    is_closed: bool
    is_paused: bool
    counts: Counts
    created_at_ms: int
    generation: str
    producer: Role
    consumer: Role
    durability: str = ""
    at_ms: int = field(default=0, compare=False)  # which instant that was
    lapsed_count: int = 0  # leases, since it was made; for metrics


class OnDuplicate(StrEnum):
    """What to do with an id that is known already."""

    REJECT = "reject"
    KEEP = "keep"
    REPLACE = "replace"


OWN_ID_MARK = "~"  # ids that the service makes begin with it, and no others


class NewMessage(NamedTuple):
    """A message to be put. `headers` is the encoded map, opaque here; at most one of the two times is given."""

    payload: bytes
    id: str = ""
    headers: bytes = b""
    delay_ms: int = 0
    not_before_at_ms: int = 0
    time_to_live_ms: int = 0  # 0 = the queue's policy

    @property
    def is_bare(self) -> bool:
        """Whether it is nothing but its payload."""
        return self[1:] == _NOTHING_BUT_PAYLOAD


_NOTHING_BUT_PAYLOAD = ("", b"", 0, 0, 0)


class PutOrder(NamedTuple):
    """A batch to be put, as its producer asked for it."""

    queue: str
    messages: Sequence[NewMessage]
    wait_ms: int = 0
    look_ms: int = STORE_BUDGET_MS  # what the last look at the store may take, when the wait was in vain
    on_duplicate: OnDuplicate = OnDuplicate.REJECT
    all_or_nothing: bool = False
    producer: str = ""
    cut_off: CutOff | None = None
    on_outcomes: Callable[[Sequence[NewMessage], Sequence[PutOutcome]], None] | None = None  # told as they become known
    comes_again: bool = False  # what finds no room is put once more: that does not count as refused


# Why a Put waits, and is refused when it does not.
NO_ROOM = frozenset({Reason.QUEUE_FULL, Reason.ROLE_IN_USE})


class PutCode(StrEnum):
    """What became of one message of a Put."""

    QUEUED = "queued"
    DELAYED = "delayed"
    KEPT = "kept"  # a message with this id was known and stays
    REPLACED = "replaced"  # took the place of the message with this id that waited
    REFUSED = "refused"  # not accepted; the outcome's error says why


class PutOutcome(NamedTuple):
    """One message's outcome. `ticket` and `position` are 0 unless it joined the line, or the one kept waits there."""

    code: PutCode
    id: str
    ticket: int = 0
    position: int = 0
    error: HeadwayError | None = None
    body_differs: bool = False  # KEPT: the one kept has another body


def refused(messages: Iterable[NewMessage], error: HeadwayError) -> list[PutOutcome]:
    """The outcomes of messages that were not accepted, all for one reason."""
    return [PutOutcome(PutCode.REFUSED, message.id, error=error) for message in messages]


NO_ASKER = b"-" * 8  # of those with whom nobody competes


class GetOrder(NamedTuple):
    """Leases asked for, and earlier ones to be settled in the same step. `lease_ms` 0 means the queue's policy;
    `max_bytes` bounds the answer, but one message is always given, unless it `must_fit`."""

    queue: str
    max_messages: int = 1
    max_bytes: int = 3 * 1024 * 1024
    must_fit: bool = False  # not even one larger message is given
    wait_ms: int = 0
    look_ms: int = STORE_BUDGET_MS  # what the last look at the store may take, when the wait has brought nothing
    lease_ms: int = 0
    consumer: str = ""
    ack: Sequence[str] = ()
    attempt_id: str = ""  # the same again gives the same leases, while they live
    asker: bytes = NO_ASKER  # who asks by that name
    stands: bool = False  # keep a place in the consumer line if there is nothing to lease
    place: str = ""  # the place that was kept
    room: int | None = None  # how many it may be given beside one for each lease that it ends; None: any number
    cut_off: CutOff | None = None

    @property
    def claim(self) -> bytes:
        """By what its leases are given back when all who asked by the same name have gone; b"" = it has no name."""
        return self.asker + self.attempt_id.encode() if self.attempt_id else b""

    def within_room(self, ended: int) -> GetOrder:
        """What it may yet be given when so many leases of `ack` were out, and have ended."""
        if self.room is None:
            return self
        return self._replace(max_messages=min(self.max_messages, self.room + ended), room=None)


class Delivery(NamedTuple):
    """A leased message. `put_at_ms` is None if nobody knows."""

    id: str
    payload: bytes
    headers: bytes
    lease: str
    lease_expires_at_ms: int
    attempt: int
    ticket: int
    put_at_ms: int | None
    waited_ms: int | None


class Settled(IntEnum):
    """How a lease stands after a settling call. Numbers are those of `headway.v1.Settled`; a test compares them."""

    ACKED = 1
    ALREADY_ACKED = 2
    RELEASED = 3
    DELAYED = 4
    EXTENDED = 5
    DEAD = 6
    STALE = 7
    GONE = 8


class Settlement(NamedTuple):
    """What a call did with one lease, or, for Delay, with one message named by id."""

    lease: str
    settled: Settled
    attempts: int = 0
    available_at_ms: int | None = None
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOrder:
    """Messages to be given back, by lease, or postponed, by id. With neither time given: by the queue's backoff.
    `until_field` is what its caller calls `until_at_ms`, which only the store's clock can find too far ahead."""

    queue: str
    leases: Sequence[str]
    message_ids: Sequence[str] = ()
    delay_ms: int | None = None
    until_at_ms: int | None = None
    until_field: str = "until"
    reason: str = ""
    keep_attempt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """A waiting message, looked at."""

    id: str
    payload: bytes
    headers: bytes
    ticket: int
    position: int
    failures: int
    put_at_ms: int | None
    last_error: str


@dataclass(frozen=True, slots=True)
class Purged:
    """How many messages a Purge removed, by the state they were in."""

    waiting: int = 0
    delayed: int = 0
    dead: int = 0


class Outcome(StrEnum):
    """How a message ended."""

    DONE = "DONE"
    DEAD = "DEAD"
    WITHDRAWN = "WITHDRAWN"
    EXPIRED = "EXPIRED"
    UNKNOWN = "UNKNOWN"  # a foreign client took it


@dataclass(frozen=True, slots=True)
class WithdrawOutcome:
    """What a Withdraw did with one id; no error means that the message is cancelled."""

    id: str
    error: HeadwayError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A dead message. `cause` is "attempts" or "expired"."""

    id: str
    payload: bytes
    headers: bytes
    failures: int
    died_at_ms: int
    cause: str
    last_error: str
    replays: int
    put_at_ms: int | None


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Dead messages in the order they died, and where the next page begins ("" = this was the last)."""

    messages: Sequence[DeadMessage]
    next_page_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOrder:
    """Dead messages to be put back: those with these ids (none = all), at most `rate` per second (0 = no limit)."""

    queue: str
    message_ids: Sequence[str] = ()
    to_queue: str = ""  # "" = the same
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveProgress:
    """How far a redrive is. `not_found_ids` is told at its end."""

    redriven: int
    remaining: int
    not_found_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check of a whole queue found; no findings means that all is well."""

    findings: Sequence[str]
    entries: int
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a Repair found, and whether it put it right. `queue` is None if a deletion was finished."""

    findings: Sequence[str]
    is_repaired: bool
    producer: Role
    consumer: Role
    queue: Queue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What the store really is and promises, as found by asking it. `refusal`: why it does not keep the durability that
    was asked for; "" if it does. `run`: which process of a server's said so."""

    kind: str = ""
    version: str = ""
    is_reachable: bool = False
    is_embedded: bool = False
    durability: str = ""
    warnings: Sequence[str] = field(default_factory=tuple)
    prefix: str = ""
    refusal: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What GetServerInfo tells of this process and its store."""

    process: str
    started_at_ms: int
    store: StoreFacts
