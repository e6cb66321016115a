"""The rules of one queue, in plain Python: what the scripts must do, said a second time and more simply.

Tickets, failures and states are those of docs/protocol.md. Nothing here is fast.
"""

from __future__ import annotations

from stateful.leasing import Leasing
from stateful.state import Known, Msg


class Model(Leasing):
    """One queue's life."""

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
            if old.has_holder:
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
            for (kind, ticket), message in self.dead:
                if message.id == given and kind == "ticket" and message.has_holder:
                    self.ended[ticket] = ("replaced", message.token)
            self.dead = [entry for entry in self.dead if entry[1].id != given]
        else:
            message = self.messages.pop(found.ref)
            if message.has_holder:
                self.ended[found.ref] = ("replaced", message.token)
            if found.where == "leased":
                del self.leased[found.ref]
            else:
                self._leave(found.ref)

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
                if message.has_holder:
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
            if message.has_holder and ref[0] == "ticket":
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
            if message.has_holder:
                self.ended[ticket] = ("over", message.token)
        for seq, (_, message) in self.delayed.items():
            self._finish(("delayed", seq), message, "WITHDRAWN")
        self.returned, self.fresh, self.delayed = [], [], {}
        self.head = self.tail
        if dead:
            for ref, message in self.dead:
                self._finish(ref, message, "WITHDRAWN")
                if message.has_holder and ref[0] == "ticket":
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
