"""The rules of one queue, in plain Python: what the scripts must do, said a second time and more simply.

Time is a number the test moves. Tickets, failures and states are those of docs/protocol.md. Nothing here is fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Msg:
    """A message wherever it is. `token` is the last lease given on it; `settled` says how that ended."""

    payload: bytes
    id: str = ""
    failures: int = 0
    token: str = ""
    is_lapsed: bool = False  # the last lease ran out: a late ack is good
    was_released: bool = False


@dataclass
class Model:
    """One queue's life."""

    bound: int
    limit: int
    lease_ms: int
    max_attempts: int
    min_backoff_ms: int
    max_backoff_ms: int
    now: int
    head: int = 0
    is_closed: bool = False
    messages: dict[int, Msg] = field(default_factory=dict)  # by ticket, while the ticket counts
    returned: list[int] = field(default_factory=list)  # at the head, in ticket order
    fresh: list[int] = field(default_factory=list)  # behind them
    leased: dict[int, int] = field(default_factory=dict)  # ticket → deadline
    delayed: list[tuple[int, int, Msg]] = field(default_factory=list)  # due, number, message
    dead: dict[int, Msg] = field(default_factory=dict)
    done: dict[int, tuple[str, str]] = field(default_factory=dict)  # ticket → ('acked' | 'delayed', token)
    ids: set[str] = field(default_factory=set)  # given ids in the queue, or finished (the window never ends here)
    seq: int = 0
    accepted: int = 0
    acked: int = 0
    withdrawn: int = 0
    foreign: int = 0

    @property
    def line(self) -> list[int]:
        return self.returned + self.fresh

    @property
    def tail(self) -> int:
        return self.head + len(self.fresh)

    def room(self) -> int:
        return 10**9 if self.bound == 0 else max(0, self.bound - len(self.line))

    # -- time ---------------------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        for ticket in sorted((t for t, deadline in self.leased.items() if deadline <= self.now)):
            del self.leased[ticket]
            message = self.messages[ticket]
            message.failures += 1
            message.is_lapsed = True
            self._fail(ticket, message)
        due = sorted((entry for entry in self.delayed if entry[0] <= self.now), key=lambda entry: entry[:2])
        for entry in due:
            self.delayed.remove(entry)
            self._join(entry[2])

    def _fail(self, ticket: int, message: Msg) -> str:
        if self.max_attempts and message.failures >= self.max_attempts:
            self.dead[ticket] = message
            del self.messages[ticket]
            return "DEAD"
        self._return(ticket)
        return "RELEASED"

    def _return(self, ticket: int) -> None:
        self.returned = sorted([*self.returned, ticket])

    def _join(self, message: Msg) -> int:
        ticket = self.tail + 1
        self.fresh.append(ticket)
        self.messages[ticket] = message
        return ticket

    def _delay(self, message: Msg, due: int) -> None:
        self.seq += 1
        self.delayed.append((due, self.seq, message))

    # -- operations ---------------------------------------------------------------------------------------------------

    def put(self, batch: list[tuple[bytes, str, int]], *, keep: bool, whole: bool) -> list[str] | str:
        """Outcome codes of the messages dealt with, or the error's name."""
        self.do_due()
        if self.is_closed:
            return "QueueClosed"
        if whole:
            seen: set[str] = set()
            needed = 0
            for _, given, delay in batch:
                known = bool(given) and (given in seen or given in self.ids)
                if known and not keep:
                    return "DuplicateMessage"
                seen.add(given)
                needed += not known and not delay
            if self.bound and needed > self.bound:
                return "FieldInvalid"
            if needed > self.room():
                return []
        outcomes = []
        for payload, given, delay in batch:
            if given and given in self.ids:
                outcomes.append("kept" if keep else "refused")
                continue
            if delay:
                self._delay(Msg(payload, given), self.now + delay)
                outcomes.append("delayed")
            elif self.room() <= 0:
                break
            else:
                self._join(Msg(payload, given))
                outcomes.append("queued")
            self.accepted += 1
            if given:
                self.ids.add(given)
        return outcomes

    def get(self, most: int, lease_ms: int, ack: list[tuple[int, str]]) -> tuple[list[str], list[int]]:
        """Settlements, and the tickets leased; the caller then names the tokens with `grant`."""
        self.do_due()
        settled = self._ack_all(ack)
        slots = 10**9 if self.limit == 0 else max(0, self.limit - len(self.leased))
        taken = self.line[: min(most, slots)]
        for ticket in taken:
            if ticket in self.returned:
                self.returned.remove(ticket)
            else:
                self.fresh.remove(ticket)
                self.head += 1
            self.leased[ticket] = self.now + (lease_ms or self.lease_ms)
            self.messages[ticket].is_lapsed = False
        return settled, taken

    def grant(self, ticket: int, token: str) -> None:
        self.messages[ticket].token = token

    def is_drained(self) -> bool:
        return self.is_closed and not self.line and not self.leased and not self.delayed

    def ack(self, leases: list[tuple[int, str]]) -> list[str]:
        self.do_due()
        return self._ack_all(leases)

    def _ack_all(self, leases: list[tuple[int, str]]) -> list[str]:
        return [self._ack_one(ticket, token) for ticket, token in leases]

    def _ack_one(self, ticket: int, token: str) -> str:
        state = self._state(ticket, token)
        if state == "LIVE":
            del self.leased[ticket]
        elif state == "LAPSED":
            self.returned.remove(ticket)
        else:
            return state
        del self.messages[ticket]
        self.done[ticket] = ("acked", token)
        self.acked += 1
        return "ACKED"

    def _state(self, ticket: int, token: str) -> str:
        if ticket in self.leased:
            return "LIVE" if self.messages[ticket].token == token else "STALE"
        if ticket in self.returned:
            message = self.messages[ticket]
            return "LAPSED" if message.token == token and message.is_lapsed else "STALE"
        if ticket in self.done:
            how, by = self.done[ticket]
            if by != token:
                return "STALE"
            return "ALREADY_ACKED" if how == "acked" else "STALE"
        if ticket in self.dead:
            return "DEAD" if self.dead[ticket].token == token else "STALE"
        return "GONE"

    def delay(self, leases: list[tuple[int, str]], *, mode: str, ms: int, keeps: bool) -> list[str]:
        self.do_due()
        results = []
        back: list[int] = []
        for ticket, token in leases:
            state = self._state(ticket, token)
            if ticket in back:  # twice in one call
                state = "GONE"
            if state not in ("LIVE", "LAPSED"):
                results.append("GONE" if state == "ALREADY_ACKED" else state)
                continue
            message = self.messages[ticket]
            if state == "LIVE":
                del self.leased[ticket]
                if keeps:
                    message.was_released = True
                else:
                    message.failures += 1
                    if self.max_attempts and message.failures >= self.max_attempts:
                        self.dead[ticket] = message
                        del self.messages[ticket]
                        results.append("DEAD")
                        continue
            message.is_lapsed = False
            wait = ms if mode == "delay" else self._backoff(message.failures)
            if wait > 0:
                if state == "LAPSED":
                    self.returned.remove(ticket)
                del self.messages[ticket]
                self.done[ticket] = ("delayed", token)
                self._delay(message, self.now + wait)
                results.append("DELAYED")
            else:
                if state == "LIVE":
                    back.append(ticket)
                results.append("RELEASED")
        for ticket in back:
            self._return(ticket)
        return results

    def _backoff(self, failures: int) -> int:
        return min(self.max_backoff_ms, self.min_backoff_ms << (max(failures, 1) - 1))

    def extend(self, leases: list[tuple[int, str]], ms: int) -> list[str]:
        self.do_due()
        results = []
        for ticket, token in leases:
            state = self._state(ticket, token)
            if state == "LIVE":
                self.leased[ticket] = self.now + ms
                results.append("EXTENDED")
            elif state == "LAPSED" and (self.limit == 0 or len(self.leased) < self.limit):
                self.returned.remove(ticket)
                self.messages[ticket].failures -= 1
                self.messages[ticket].is_lapsed = False
                self.leased[ticket] = self.now + ms
                results.append("EXTENDED")
            else:
                results.append({"LAPSED": "STALE", "DEAD": "STALE", "ALREADY_ACKED": "GONE"}.get(state, state))
        return results

    # -- operators and foreign clients --------------------------------------------------------------------------------

    def purge(self, *, dead: bool) -> tuple[int, int, int]:
        self.do_due()
        removed = (len(self.line), len(self.delayed), len(self.dead) if dead else 0)
        self.head += len(self.fresh)
        for ticket in self.line:
            del self.messages[ticket]
        self.returned, self.fresh, self.delayed = [], [], []
        if dead:
            self.dead = {}
        self.withdrawn += sum(removed)
        return removed

    def foreign_put(self, payload: bytes) -> None:
        self._join(Msg(payload))
        self.accepted += 1

    def foreign_get(self) -> bytes | None:
        if not self.line:
            return None
        ticket = self.line[0]
        if ticket in self.returned:
            self.returned.remove(ticket)
        else:
            self.fresh.remove(ticket)
            self.head += 1
        self.foreign += 1
        return self.messages.pop(ticket).payload
