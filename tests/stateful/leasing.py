"""The model's leases: given, settled, given back, kept alive."""

from __future__ import annotations

from stateful.state import Msg, QueueState


class Leasing(QueueState):
    """What a Get gives, and what becomes of it."""

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
            if ticket in back:  # an earlier lease of what is given back in this call
                state = "STALE"
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
        self._return(back)
        return results + [self._postpone(name, mode=mode, ms=ms) for name in names]

    def _put_aside(self, ticket: int, message: Msg, wait: int) -> None:
        del self.messages[ticket]
        if message.has_holder:
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
                for given in self.attempts.values():  # what lapsed is its attempt's no more
                    if (ticket, token) in given:
                        given.remove((ticket, token))
                results.append("EXTENDED")
            else:
                results.append({"LAPSED": "STALE", "DEAD": "STALE", "ALREADY_ACKED": "GONE"}.get(state, state))
        return results
