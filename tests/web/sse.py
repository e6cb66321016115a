"""A reader of server-sent events, after the rules of the HTML standard as far as the service uses them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """One event; `id` is the last event id as it stood then."""

    name: str
    data: Any
    id: str


class Events:
    """The events of one response, as they come. `retry_ms` and `last_id` are what an EventSource would keep."""

    def __init__(self, response: httpx.Response, last_id: str = "") -> None:
        self.response = response
        self.last_id = last_id
        self.retry_ms: int | None = None
        self.comments = 0
        self._events = self._read()

    async def _read(self) -> AsyncIterator[Event]:
        fields: dict[str, str] = {}
        async for line in self.response.aiter_lines():
            if not line:
                if "data" in fields:
                    yield Event(fields.get("event", "message"), json.loads(fields["data"]), self.last_id)
                fields = {}
                continue
            name, _, value = line.partition(": ")
            match name:
                case "":
                    self.comments += 1
                case "id":
                    self.last_id = value
                case "retry":
                    self.retry_ms = int(value)
                case _:
                    assert name not in fields, "data of several lines"
                    fields[name] = value

    async def next(self, wanted: Callable[[Event], bool] = lambda _event: True) -> Event:
        """The next that is wanted."""
        async for event in self._events:
            if wanted(event):
                return event
        raise AssertionError("the stream has ended")

    async def rest(self) -> list[Event]:
        """All until the end."""
        return [event async for event in self._events]


@asynccontextmanager
async def watching(http: httpx.AsyncClient, queue: str, *ids: str, **headers: str) -> AsyncIterator[Events]:
    """As an EventSource does it, with these headers besides (`_` for `-`)."""
    sent = {"accept": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    timeout = httpx.Timeout(30)
    async with http.stream("GET", f"/queues/{queue}/events", params={"id": ids}, headers=sent, timeout=timeout) as got:
        yield Events(got, sent.get("last-event-id", ""))
