"""A foreign client of the pressure protocol, step by step as its document says, on the queue that is soaked."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from soak.witness import name_in


class ForeignClient:
    """Puts and takes now and then, from a thread of its own."""

    def __init__(self, client: redis.Redis, base: str, bound: int) -> None:
        self._client = client
        self._base = base
        self._bound = bound
        self.put_names: set[str] = set()
        self.taken: set[str] = set()
        self.holds: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)  # of each role, by this clock

    def run(self, stopped: threading.Event) -> None:
        """Until stopped."""
        number = 0
        while not stopped.wait(random.random() * 0.2):
            if random.random() < 0.5:
                number += self._put(f"f0-{number}")
            else:
                self._take()

    def _key(self, name: str) -> str:
        return f"{self._base}:{name}"

    def _make_room_known(self) -> None:
        if self._client.llen(self._base) < self._bound:
            self._client.lpush(self._key("not_full"), 0)
            self._client.ltrim(self._key("not_full"), 0, 0)

    @contextmanager
    def _role(self, role: str) -> Iterator[bool]:
        """Takes the role, if it can, and gives it back."""
        began = time.monotonic()
        is_taken = self._client.rpop(self._key(f"{role}_free")) is not None
        if is_taken:
            self._client.set(self._key(role), "foreign")
        yield is_taken
        if is_taken:
            self._client.lpush(self._key(f"{role}_free"), 0)
            self.holds[role].append((began, time.monotonic()))

    def unexplained(self, told: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
        """Of those who were told that a role is taken, and when they looked, those by whom it was not held then."""
        return [
            (role, since, until)
            for role, since, until in told
            if not any(began < until and since < ended for began, ended in self.holds[role])
        ]

    def _put(self, name: str) -> int:
        with self._role("producer") as is_taken:
            if not is_taken or self._client.rpop(self._key("not_full")) is None:
                return 0
            self._client.lpush(self._base, name)
            self._make_room_known()
            self._client.incr(self._key("stats:produced_messages"))
            self._client.incrby(self._key("stats:produced_bytes"), len(name))
            self.put_names.add(name)
            return 1

    def _take(self) -> None:
        with self._role("consumer") as is_taken:
            element = self._client.rpop(self._base) if is_taken else None
            if isinstance(element, bytes):
                self._make_room_known()
                self._client.incr(self._key("stats:consumed_messages"))
                self._client.incrby(self._key("stats:consumed_bytes"), len(element))
                self.taken.add(name_in(element).decode())
