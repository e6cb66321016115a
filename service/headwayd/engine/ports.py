"""What the engine needs of a store. `store/redis_store.py` is the one that fulfils it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from headwayd.domain.blocked import BlockedPlaces, BlockedPut
from headwayd.domain.errors import HeadwayError, QueueDrained
from headwayd.domain.hints import PollHints
from headwayd.domain.model import (
    Checked,
    DeadPage,
    DelayOrder,
    Delivery,
    GetOrder,
    NewMessage,
    OnDuplicate,
    Peeked,
    Policy,
    Purged,
    PutOutcome,
    Queue,
    Repaired,
    Settlement,
    StoreFacts,
    WithdrawOutcome,
)
from headwayd.domain.namespaces import DEFAULT
from headwayd.domain.places import Feed, LeasedMessage, LineNumbers, Places, Progress
from headwayd.domain.standing import Footings, Standing, Waiter


class Wait(Enum):
    """Why a step could not be done at once, or that it could."""

    NOTHING = "done"  # nothing to wait for
    EMPTY = "empty"  # no message waits
    SLOT = "slot"  # every slot is out
    DRAIN = "drain"  # nothing waits, and the queue is closed: only what is leased or delayed may still come
    LARGE = "large"  # the next message is larger than what it must fit into; such a one does not stand in line
    LINE = "line"  # others stand before
    ROOM = "room"  # the line is full, or other producers wait before
    ROLE = "role"  # a foreign client holds the role
    PAUSED = "paused"  # an administrator paused the queue
    MORE = "more"  # the rest is for another step, which the store takes by itself; told where that failed


class PutStep(NamedTuple):
    """How far one attempt of a Put came: outcomes of the messages from the first on, and why it stopped, if it did."""

    outcomes: Sequence[PutOutcome]
    wait: Wait = Wait.NOTHING
    line_ticket: int = 0  # this producer's number in the producer line, 0 if it does not stand there
    holder: str = ""  # ROLE: who holds it
    bound: int = 0
    generation: str = ""  # the queue's


_ANY_POLICY = Policy()


class GetStep(NamedTuple):
    """What one attempt of a Get gave, and why it gave nothing, if it did not; then also where it stands in line.
    `was_dropped`: it had stood there before, and was found to stand there no longer. `polls` has the policy's poll part
    only. `left`: how many more could be leased just after it. `ended`: how many leases were out that it, or all who
    asked together, settled; an ack that comes late ends none."""

    deliveries: Sequence[Delivery]
    settled: Sequence[Settlement]
    generation: str = ""
    wait: Wait = Wait.NOTHING
    holder: str = ""
    at_ms: int = 0
    number: int = 0
    position: int = 0
    length: int = 0
    limit: int = 0
    polls: Policy = _ANY_POLICY
    was_dropped: bool = False
    left: int = 0
    ended: int = 0


class GetAsk(NamedTuple):
    """What one of several who ask together asks for, and as whom it stands in line if it gets nothing."""

    order: GetOrder
    waiter: Waiter | None = None


@dataclass(frozen=True, slots=True)
class RoleStep:
    """Whether a step that needs a foreign client's role was done; if not, which role and who holds it, and the life of
    the queue that the step was of; give it back with the next, which is of that one and no other."""

    is_done: bool
    role: str = ""
    holder: str = ""
    generation: str = ""


class OwnNames(NamedTuple):
    """Qualified names of queues, and why those on some server are missing; None: they are all."""

    names: Sequence[str]
    missing: HeadwayError | None


class RedriveBounds(NamedTuple):
    """What all steps of one redrive have in common. The first one finds it out."""

    last: int = 0  # the number of the last of the dead that it moves; 0 = of those that are dead now
    generation: str = ""  # the life of the queue; "" = whichever it is
    to_generation: str = ""  # the same of the target, if that is another queue


_FIRST_BOUNDS = RedriveBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveStep:
    """How far one step of a redrive came."""

    moved: int
    done: int  # ids dealt with, from the first on, found or not; 0 if none were named
    not_found: Sequence[str]
    remaining: int  # of the dead that it moves, how many are still here; 0 if ids were named
    bounds: RedriveBounds  # to be given back with the next step
    is_full: bool  # the target has no room for more


# Called with a queue's name when something may have changed for those who wait there; with None when anything may have.
HintListener = Callable[[str | None, bool], None]
# Called with a queue's name and the seconds until time alone next changes something there.
DueListener = Callable[[str, float], None]


class Store(Protocol):
    """Queues in a store. Every method is one atomic step unless it says otherwise, takes at most `budget_s` seconds,
    and raises StoreUnavailable (nothing happened), OutcomeUnknown, StoreFull or NotDurable when the store has trouble;
    QueueNotFound and QueueDeleted where they name a queue that is not there. What each step does: `RedisStore`."""

    @property
    def facts(self) -> StoreFacts: ...

    async def probe(self, *, budget_s: float) -> StoreFacts: ...

    async def ping(self, *, budget_s: float) -> None: ...

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]: ...

    async def describe(self, queue: str, *, budget_s: float) -> Queue: ...

    async def describe_many(
        self, queues: Sequence[str], *, only_known: bool = False, budget_s: float
    ) -> Sequence[Queue]: ...

    async def names(self, namespace: str | None = DEFAULT, *, budget_s: float) -> Sequence[str]: ...

    async def weigh(self, queues: Sequence[str], *, budget_s: float) -> int: ...

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames: ...

    async def update(
        self,
        queue: str,
        policy: Policy,
        fields: Sequence[str],
        *,
        max_backoff_follows: bool = False,
        budget_s: float,
    ) -> Queue: ...

    async def set_paused(self, queue: str, is_paused: bool, *, budget_s: float) -> Queue: ...

    async def close_queue(self, queue: str, *, generation: str = "", budget_s: float) -> Queue | RoleStep: ...

    async def delete(self, queue: str, *, generation: str = "", budget_s: float) -> RoleStep: ...

    async def put(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        producer: str,
        waiter: str,
        line_ticket: int,
        on_duplicate: OnDuplicate,
        all_or_nothing: bool,
        generation: str = "",
        budget_s: float,
    ) -> PutStep: ...

    async def leave_line(self, queue: str, waiter: str, *, budget_s: float) -> None: ...

    async def get(self, order: GetOrder, *, budget_s: float, waiter: Waiter | None = None) -> GetStep: ...

    async def get_together(self, asks: Sequence[GetAsk], *, budget_s: float) -> Sequence[GetStep | QueueDrained]: ...

    async def stop_standing(self, queue: str, waiter: str, *, keeps_leases: bool = False, budget_s: float) -> None: ...

    async def keep_place(
        self, queue: str, waiter: Waiter, place: str, hints: PollHints | None, *, budget_s: float
    ) -> tuple[Standing, LineNumbers]: ...

    async def footings(
        self, queue: str, waiters: Sequence[Waiter], *, stand_again: bool, budget_s: float
    ) -> Footings: ...

    async def drop_absent(self, queue: str, *, spared: Collection[str] = (), budget_s: float) -> None: ...

    async def processes(self, *, budget_s: float) -> frozenset[str]: ...

    async def arm_standing(self, queue: str) -> None: ...

    async def ack(
        self, queue: str, leases: Sequence[str], *, budget_s: float, result: bytes = b""
    ) -> Sequence[Settlement]: ...

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]: ...

    async def release(
        self,
        queue: str,
        leases: Sequence[str],
        *,
        budget_s: float,
        owned: bool = False,
        owner: str = "",
        claim: bytes = b"",
    ) -> Sequence[Settlement]: ...

    def ticket_of(self, lease: str) -> int: ...

    async def extend(
        self,
        queue: str,
        leases: Sequence[str],
        lease_ms: int,
        *,
        budget_s: float,
        progress: Progress | None = None,
        owner: str = "",
    ) -> Sequence[Settlement]: ...

    async def peek(
        self, queue: str, *, from_position: int, max_messages: int, max_bytes: int, budget_s: float
    ) -> Sequence[Peeked]: ...

    async def withdraw(
        self, queue: str, message_ids: Sequence[str], *, generation: str = "", budget_s: float
    ) -> Sequence[WithdrawOutcome]: ...

    async def list_leased(self, queue: str, *, max_messages: int, budget_s: float) -> Sequence[LeasedMessage]: ...

    async def list_dead(
        self, queue: str, *, page_size: int, page_token: str, max_bytes: int, budget_s: float
    ) -> DeadPage: ...

    async def redrive(
        self,
        queue: str,
        to_queue: str,
        *,
        message_ids: Sequence[str],
        bounds: RedriveBounds = _FIRST_BOUNDS,
        most: int,
        budget_s: float,
    ) -> RedriveStep: ...

    async def places(self, queue: str, message_ids: Sequence[str], *, with_shape: bool, budget_s: float) -> Places: ...

    async def feed(self, queue: str, *, generation: str, logged: int, budget_s: float) -> Feed: ...

    async def arm_watch(self, queue: str) -> None: ...

    async def blocked(
        self, queue: str, producers: Sequence[str], *, again: Sequence[BlockedPut] = (), budget_s: float
    ) -> BlockedPlaces: ...

    async def arm_blocked(self, queue: str) -> None: ...

    async def check(self, queue: str, *, max_entries: int, budget_s: float) -> Checked: ...

    async def purge(self, queue: str, *, with_dead: bool, budget_s: float) -> Purged | RoleStep: ...

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired: ...

    async def sweep(self, queue: str, *, budget_s: float) -> bool: ...

    def on_hint(self, listener: HintListener) -> None: ...

    def on_standing(self, listener: Callable[[str], None]) -> None: ...

    def on_blocked(self, listener: Callable[[str], None]) -> None: ...

    def on_due(self, listener: DueListener) -> None: ...

    def on_reconnect(self, listener: Callable[[], None]) -> None: ...

    async def arm(self, queue: str, *, until_drained: bool) -> bool: ...

    async def find_quiet(self, queues: Sequence[str]) -> Collection[str]: ...

    @property
    def quiet_at_once(self) -> int: ...
