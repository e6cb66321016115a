"""A foreign client of the pressure protocol, step by step as its document says, on the queue that is soaked."""

from __future__ import annotations

import random
import threading

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

    def _put(self, name: str) -> int:
        if self._client.rpop(self._key("producer_free")) is None:
            return 0
        self._client.set(self._key("producer"), "foreign")
        is_room = self._client.rpop(self._key("not_full")) is not None
        if is_room:
            self._client.lpush(self._base, name)
            self._make_room_known()
            self._client.incr(self._key("stats:produced_messages"))
            self._client.incrby(self._key("stats:produced_bytes"), len(name))
            self.put_names.add(name)
        self._client.lpush(self._key("producer_free"), 0)
        return int(is_room)

    def _take(self) -> None:
        if self._client.rpop(self._key("consumer_free")) is None:
            return
        self._client.set(self._key("consumer"), "foreign")
        element = self._client.rpop(self._base)
        if isinstance(element, bytes):
            self._make_room_known()
            self._client.incr(self._key("stats:consumed_messages"))
            self._client.incrby(self._key("stats:consumed_bytes"), len(element))
            self.taken.add(name_in(element).decode())
        self._client.lpush(self._key("consumer_free"), 0)
