"""What the model of a queue knows of its messages, what they are called, and what time brings them."""

from __future__ import annotations

from dataclasses import dataclass, field

OVER = 10**9  # no bound, no limit


NOBODYS = "nobody's"


@dataclass
class Msg:
    """A message wherever it is. `token` is the last lease given on it, or NOBODYS if that was given back while it was
    not sure where it goes; `name` is what it is known by, once its ticket no longer is its name."""

    payload: bytes
    id: str = ""
    name: str = ""
    expires_at: int = 0
    failures: int = 0
    replays: int = 0
    token: str = ""
    is_lapsed: bool = False  # the last lease ran out: a late ack is good
    cause: str = ""  # of its death

    @property
    def has_holder(self) -> bool:
        """Whether it is known to whom it was given last."""
        return self.token not in ("", NOBODYS)


@dataclass
class Known:
    """Where the message with a name is. `where` is waiting, leased, delayed, dead or finished."""

    where: str
    ref: int = 0  # ticket, or sequence number if delayed
    outcome: str = ""
    finished_at: int = 0
    payload: bytes = b""
    result: bytes = b""


@dataclass
class QueueState:
    """One queue's life. Time is a number the test moves."""

    bound: int
    limit: int
    lease_ms: int
    max_attempts: int
    min_backoff_ms: int
    max_backoff_ms: int
    time_to_live_ms: int
    dead_letter_expired: bool
    now: int
    window_ms: int = 0
    head: int = 0
    tail: int = 0
    is_closed: bool = False
    messages: dict[int, Msg] = field(default_factory=dict)  # by ticket, while it waits or is leased
    most_moved: int = 2_000  # of those that came back, for one more
    returned: list[int] = field(default_factory=list)  # at the head, the block begun last first, in a block by ticket
    block_of: dict[int, int] = field(default_factory=dict)  # by ticket
    fresh: list[int] = field(default_factory=list)  # behind them
    leased: dict[int, int] = field(default_factory=dict)  # ticket → deadline
    delayed: dict[int, tuple[int, Msg]] = field(default_factory=dict)  # sequence number → due, message
    dead: list[tuple[tuple[str, int], Msg]] = field(default_factory=list)  # in the order they died
    ended: dict[int, tuple[str, str]] = field(default_factory=dict)  # ticket → how the last lease ended, token
    names: dict[str, Known] = field(default_factory=dict)  # of finished messages
    attempts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # attempt → ticket, token
    seq: int = 0
    accepted: int = 0
    acked: int = 0
    expired: int = 0
    withdrawn: int = 0
    foreign: int = 0

    @property
    def line(self) -> list[int]:
        return self.returned + self.fresh

    def room(self) -> int:
        return OVER if self.bound == 0 else max(0, self.bound - len(self.line))

    def slots(self) -> int:
        return OVER if self.limit == 0 else max(0, self.limit - len(self.leased))

    # -- names --------------------------------------------------------------------------------------------------------

    def name_of(self, ref: tuple[str, int], message: Msg) -> str:
        """Its own id, the made one it kept, or the one its place makes: "7" by ticket, "d7" by sequence number."""
        kind, number = ref
        return message.id or message.name or f"{'d' if kind == 'delayed' else ''}{number}"

    def find(self, name: str) -> Known | None:
        """Where the message with this name is now."""
        for ticket, message in self.messages.items():
            if self.name_of(("ticket", ticket), message) == name:
                return Known("leased" if ticket in self.leased else "waiting", ticket, payload=message.payload)
        for seq, (_, message) in self.delayed.items():
            if self.name_of(("delayed", seq), message) == name:
                return Known("delayed", seq, payload=message.payload)
        for ref, message in self.dead:
            if self.name_of(ref, message) == name:
                return Known("dead", ref[1], payload=message.payload)
        return self.names.get(name)

    def known(self, given: str) -> Known | None:
        """What counts as known when a message with this id is put."""
        found = self.find(given) if given else None
        if found and found.where == "finished" and self.now >= found.finished_at + self.window_ms:
            return None
        return found

    def _finish(self, ref: tuple[str, int], message: Msg, outcome: str, result: bytes = b"") -> None:
        known = Known("finished", ref[1], outcome, self.now, message.payload, result)
        self.names[self.name_of(ref, message)] = known

    # -- time ---------------------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        back = []
        lapsed = [ticket for ticket, at in self.leased.items() if at <= self.now]
        for ticket in sorted(lapsed, key=lambda t: (self.leased[t], str(t))):
            del self.leased[ticket]
            message = self.messages[ticket]
            message.failures += 1
            message.is_lapsed = True
            if self.max_attempts and message.failures >= self.max_attempts:
                del self.messages[ticket]
                self._bury(("ticket", ticket), message, "attempts")
            else:
                back.append(ticket)
        self._return(back)
        old = [ticket for ticket in self.line if self._is_over(self.messages[ticket])]
        for ticket in sorted(old, key=lambda t: (self.messages[t].expires_at, str(t))):
            self._leave(ticket)
            self._expire(("ticket", ticket), self.messages.pop(ticket))
        old = [seq for seq, (_, message) in self.delayed.items() if self._is_over(message)]
        for seq in sorted(old, key=lambda s: (self.delayed[s][1].expires_at, s)):
            self._expire(("delayed", seq), self.delayed.pop(seq)[1])
        due = [seq for seq, (at, _) in self.delayed.items() if at <= self.now]
        for seq in sorted(due, key=lambda s: (self.delayed[s][0], s)):
            message = self.delayed.pop(seq)[1]
            message.name = message.name or ("" if message.id else f"d{seq}")
            self._join(message)

    def _is_over(self, message: Msg) -> bool:
        return 0 < message.expires_at <= self.now

    def _leave(self, ticket: int) -> None:
        if ticket in self.returned:
            self.returned.remove(ticket)
        else:
            self.fresh.remove(ticket)
            self._pass_head()

    def _pass_head(self) -> None:
        self.head = self.fresh[0] - 1 if self.fresh else self.tail

    def _expire(self, ref: tuple[str, int], message: Msg) -> None:
        if self.dead_letter_expired:
            self._bury(ref, message, "expired")
            return
        self._finish(ref, message, "EXPIRED")
        if message.has_holder and ref[0] == "ticket":
            self.ended[ref[1]] = ("over", message.token)
        self.expired += 1

    def _bury(self, ref: tuple[str, int], message: Msg, cause: str) -> None:
        message.cause = cause
        self.dead.append((ref, message))

    def _return(self, tickets: list[int]) -> None:
        """To the head, in one step."""
        back = []
        for ticket in tickets:
            message = self.messages[ticket]
            if self._is_over(message):
                del self.messages[ticket]
                self._expire(("ticket", ticket), message)
            else:
                back.append(ticket)
        if not back:
            return
        block = self.block_of[self.returned[0]] if self.returned else 0
        before = [ticket for ticket in self.returned if self.block_of[ticket] == block and ticket < max(back)]
        block += len(before) > self.most_moved
        self.block_of |= dict.fromkeys(back, block)
        self.returned = sorted([*self.returned, *back], key=lambda ticket: (-self.block_of[ticket], ticket))

    def _join(self, message: Msg) -> int:
        self.tail += 1
        self.fresh.append(self.tail)
        self.messages[self.tail] = message
        return self.tail

    def _delay(self, message: Msg, due: int) -> None:
        self.seq += 1
        self.delayed[self.seq] = (due, message)
