"""The rules of one queue, in plain Python: what the scripts must do, said a second time and more simply.

Time is a number the test moves. Tickets, failures and states are those of docs/protocol.md. Nothing here is fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OVER = 10**9  # no bound, no limit


@dataclass
class Msg:
    """A message wherever it is. `token` is the last lease given on it; `name` is what it is known by, once its ticket
    no longer is its name."""

    payload: bytes
    id: str = ""
    name: str = ""
    expires_at: int = 0
    failures: int = 0
    replays: int = 0
    token: str = ""
    is_lapsed: bool = False  # the last lease ran out: a late ack is good
    cause: str = ""  # of its death


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
class Model:
    """One queue's life."""

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
    returned: list[int] = field(default_factory=list)  # at the head, in ticket order
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
        for ticket in back:
            self._return(ticket)
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
        if message.token and ref[0] == "ticket":
            self.ended[ref[1]] = ("over", message.token)
        self.expired += 1

    def _bury(self, ref: tuple[str, int], message: Msg, cause: str) -> None:
        message.cause = cause
        self.dead.append((ref, message))

    def _return(self, ticket: int) -> None:
        message = self.messages[ticket]
        if self._is_over(message):
            del self.messages[ticket]
            self._expire(("ticket", ticket), message)
        else:
            self.returned = sorted([*self.returned, ticket])

    def _join(self, message: Msg) -> int:
        self.tail += 1
        self.fresh.append(self.tail)
        self.messages[self.tail] = message
        return self.tail

    def _delay(self, message: Msg, due: int) -> None:
        self.seq += 1
        self.delayed[self.seq] = (due, message)

    # -- operations ---------------------------------------------------------------------------------------------------

    def put(
        self, batch: list[tuple[bytes, str, int, int]], *, mode: str, whole: bool
    ) -> list[tuple[str, int, int]] | str:
        """For each message dealt with its code, ticket and position; or the error's name."""
        self.do_due()
        if self.is_closed:
            return "QueueClosed"
        if whole and (refusal := self._cannot_put_whole(batch, mode)) is not None:
            return refusal
        outcomes = []
        for item in batch:
            outcome = self._put_one(*item, mode=mode)
            if outcome is None:
                break
            outcomes.append(outcome)
        return outcomes

    def _cannot_put_whole(
        self, batch: list[tuple[bytes, str, int, int]], mode: str
    ) -> list[tuple[str, int, int]] | str | None:
        seen: dict[str, str] = {}
        needed = 0
        for _, given, delay, _ in batch:
            found = self.known(given)
            where = seen.get(given) or (found.where if found else "")
            if where and mode == "reject":
                return "DuplicateMessage"
            stays = where and (mode == "keep" or where == "waiting")
            needed += not stays and not delay
            if given:
                seen[given] = "delayed" if delay else "waiting"
        if self.bound and needed > self.bound:
            return "FieldInvalid"
        return [] if needed > self.room() else None

    def _put_one(self, payload: bytes, given: str, delay: int, ttl: int, *, mode: str) -> tuple[str, int, int] | None:
        """None if there is no room."""
        found = self.known(given)
        if found and mode != "replace":
            return self._duplicate(found, payload, mode)
        lives = ttl or self.time_to_live_ms
        message = Msg(payload, given, expires_at=self.now + lives if lives else 0)
        if found and found.where == "waiting" and not delay:
            old = self.messages[found.ref]
            if old.token:
                self.ended[found.ref] = ("replaced", old.token)
            self.messages[found.ref] = message
            self.withdrawn += 1
            outcome = ("replaced", found.ref, self.line.index(found.ref) + 1)
        elif not delay and self.room() <= 0:
            return None
        else:
            if found:
                self._replace(given, found)
            if delay:
                self._delay(message, self.now + delay)
                outcome = ("delayed", 0, 0)
            else:
                outcome = ("queued", self._join(message), len(self.line))
        self.accepted += 1
        if given:
            self.names.pop(given, None)
        return outcome

    def _duplicate(self, found: Known, payload: bytes, mode: str) -> tuple[str, int, int]:
        if mode == "reject":
            return "refused", 0, 0
        same = found.payload == payload or found.outcome == "UNKNOWN"
        position = self.line.index(found.ref) + 1 if found.where == "waiting" else 0
        return "kept" if same else "differs", found.ref if position else 0, position

    def _replace(self, given: str, found: Known) -> None:
        if found.where == "finished":
            return
        self.withdrawn += 1
        if found.where == "delayed":
            del self.delayed[found.ref]
        elif found.where == "dead":
            self.dead = [entry for entry in self.dead if entry[1].id != given]
        else:
            message = self.messages.pop(found.ref)
            if message.token:
                self.ended[found.ref] = ("replaced", message.token)
            if found.where == "leased":
                del self.leased[found.ref]
            else:
                self._leave(found.ref)

    def get(
        self, most: int, lease_ms: int, ack: list[tuple[int, str]], attempt: str = ""
    ) -> tuple[list[str], list[int], bool]:
        """Settlements, the tickets leased, and whether they were before; if not, the caller names the tokens with
        `grant`."""
        self.do_due()
        settled = self._ack_all(ack, b"")
        again = [
            t for t, token in self.attempts.get(attempt, []) if t in self.leased and self.messages[t].token == token
        ]
        if again:
            return settled, again, True
        taken = self.line[: min(most, self.slots())]
        for ticket in taken:
            self._leave(ticket)
            self.leased[ticket] = self.now + (lease_ms or self.lease_ms)
            self.messages[ticket].is_lapsed = False
        return settled, taken, False

    def grant(self, ticket: int, token: str, attempt: str = "") -> None:
        self.messages[ticket].token = token
        if attempt:
            self.attempts.setdefault(attempt, []).append((ticket, token))

    def is_drained(self) -> bool:
        return self.is_closed and not self.line and not self.leased and not self.delayed

    def ack(self, leases: list[tuple[int, str]], result: bytes) -> list[str]:
        self.do_due()
        return self._ack_all(leases, result)

    def _ack_all(self, leases: list[tuple[int, str]], result: bytes) -> list[str]:
        return [self._ack_one(ticket, token, result) for ticket, token in leases]

    def _ack_one(self, ticket: int, token: str, result: bytes) -> str:
        state = self._state(ticket, token)
        if state == "LIVE":
            del self.leased[ticket]
        elif state == "LAPSED":
            self.returned.remove(ticket)
        else:
            return state
        self._finish(("ticket", ticket), self.messages.pop(ticket), "DONE", result)
        self.ended[ticket] = ("acked", token)
        self.acked += 1
        return "ACKED"

    def _state(self, ticket: int, token: str) -> str:
        if ticket in self.leased:
            return "LIVE" if self.messages[ticket].token == token else "STALE"
        if ticket in self.returned and self.messages[ticket].token:
            message = self.messages[ticket]
            return "LAPSED" if message.token == token and message.is_lapsed else "STALE"
        for ref, message in self.dead:
            if ref == ("ticket", ticket):
                return "DEAD" if message.token == token else "STALE"
        if ticket in self.ended:
            how, by = self.ended[ticket]
            if by != token:
                return "STALE"
            return {"acked": "ALREADY_ACKED", "over": "GONE"}.get(how, "STALE")
        return "GONE"

    def delay(self, leases: list[tuple[int, str]], names: list[str], *, mode: str, ms: int, keeps: bool) -> list[str]:
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
                if not keeps:
                    message.failures += 1
                    if self.max_attempts and message.failures >= self.max_attempts:
                        del self.messages[ticket]
                        self._bury(("ticket", ticket), message, "attempts")
                        results.append("DEAD")
                        continue
            wait = ms if mode == "delay" else self._backoff(message.failures)
            if state == "LIVE" and self._is_over(message):
                del self.messages[ticket]
                self._expire(("ticket", ticket), message)
                results.append("DEAD" if self.dead_letter_expired else "GONE")
                continue
            message.is_lapsed = False
            if wait > 0:
                if state == "LAPSED":
                    self.returned.remove(ticket)
                self._put_aside(ticket, message, wait)
                results.append("DELAYED")
            else:
                if state == "LIVE":
                    back.append(ticket)
                results.append("RELEASED")
        for ticket in back:
            self._return(ticket)
        return results + [self._postpone(name, mode=mode, ms=ms) for name in names]

    def _put_aside(self, ticket: int, message: Msg, wait: int) -> None:
        del self.messages[ticket]
        if message.token:
            self.ended[ticket] = ("delayed", message.token)
        message.name = self.name_of(("ticket", ticket), message) if not message.id else ""
        self._delay(message, self.now + wait)

    def _postpone(self, name: str, *, mode: str, ms: int) -> str:
        found = self.find(name)
        if found and found.where == "leased":
            return "STALE"
        if not found or found.where not in ("waiting", "delayed"):
            return "GONE"
        message = self.messages[found.ref] if found.where == "waiting" else self.delayed[found.ref][1]
        wait = ms if mode == "delay" else self._backoff(message.failures)
        if found.where == "waiting":
            if wait <= 0:
                return "RELEASED"
            self._leave(found.ref)
            self._put_aside(found.ref, message, wait)
        else:
            del self.delayed[found.ref]
            message.name = message.name or ("" if message.id else f"d{found.ref}")
            self._delay(message, self.now + wait)
        return "DELAYED"

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
            elif state == "LAPSED" and self.slots() > 0:
                self.returned.remove(ticket)
                self.messages[ticket].failures -= 1
                self.messages[ticket].is_lapsed = False
                self.leased[ticket] = self.now + ms
                results.append("EXTENDED")
            else:
                results.append({"LAPSED": "STALE", "DEAD": "STALE", "ALREADY_ACKED": "GONE"}.get(state, state))
        return results

    def withdraw(self, names: list[str]) -> list[str]:
        """WITHDRAWN, LEASED, the outcome of what is finished, or "" for what is not known."""
        self.do_due()
        results = []
        for name in names:
            found = self.find(name)
            if found is None:
                results.append("")
            elif found.where == "waiting":
                self._leave(found.ref)
                message = self.messages.pop(found.ref)
                self._finish(("ticket", found.ref), message, "WITHDRAWN")
                if message.token:
                    self.ended[found.ref] = ("over", message.token)
                results.append("withdrawn")
            elif found.where == "delayed":
                self._finish(("delayed", found.ref), self.delayed.pop(found.ref)[1], "WITHDRAWN")
                results.append("withdrawn")
            else:
                results.append({"leased": "leased", "dead": "DEAD"}.get(found.where, found.outcome))
            self.withdrawn += results[-1] == "withdrawn"
        return results

    def redrive(self, names: list[str], most: int) -> tuple[int, list[str]] | str:
        """How many came back, and the names that are not dead."""
        self.do_due()
        if self.is_closed:
            return "QueueClosed"
        most = min(most, self.room())
        dead = {self.name_of(*entry): entry for entry in self.dead}
        moved, missing = self.dead[:most], []
        if names:
            moved = []
            for name in names:
                if name not in dead:
                    missing.append(name)
                elif len(moved) == most:
                    break
                else:
                    moved.append(dead[name])
        for ref, message in moved:
            self.dead.remove((ref, message))
            if message.token and ref[0] == "ticket":
                self.ended[ref[1]] = ("delayed", message.token)
            message.name = "" if message.id else self.name_of(ref, message)
            message.failures, message.replays, message.expires_at = 0, message.replays + 1, 0
            self._join(message)
        return len(moved), missing

    # -- operators and foreign clients --------------------------------------------------------------------------------

    def purge(self, *, dead: bool) -> tuple[int, int, int]:
        self.do_due()
        removed = (len(self.line), len(self.delayed), len(self.dead) if dead else 0)
        for ticket in self.line:
            message = self.messages.pop(ticket)
            self._finish(("ticket", ticket), message, "WITHDRAWN")
            if message.token:
                self.ended[ticket] = ("over", message.token)
        for seq, (_, message) in self.delayed.items():
            self._finish(("delayed", seq), message, "WITHDRAWN")
        self.returned, self.fresh, self.delayed = [], [], {}
        self.head = self.tail
        if dead:
            for ref, message in self.dead:
                self._finish(ref, message, "WITHDRAWN")
                if message.token and ref[0] == "ticket":
                    self.ended[ref[1]] = ("over", message.token)
            self.dead = []
        self.withdrawn += sum(removed)
        return removed

    def foreign_put(self, payload: bytes) -> Msg:
        message = Msg(payload)
        self._join(message)
        self.accepted += 1
        return message

    def foreign_get(self) -> bytes | None:
        if not self.line:
            return None
        ticket = self.line[0]
        self._leave(ticket)
        self.foreign += 1
        message = self.messages.pop(ticket)
        if message.id or message.name:
            self.names[message.id or message.name] = Known("finished", ticket, "UNKNOWN", self.now)
        return message.payload
