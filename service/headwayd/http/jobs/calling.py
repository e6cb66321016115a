"""The calls that this door makes, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from headwayd.domain.calls import Asked
from headwayd.http.connecting import Calls

_SERVICE = "/headway.v1.QueueService/"


class Calling:
    """Makes them. Every one raises CallFailed."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(self, name: str, asked: Asked, **fields: object) -> dict[str, Any]:
        """The answer of one call; a field that is None is not sent."""
        reply = await self._calls.call(_SERVICE + name, _packed(fields), asked, is_json=True)
        return dict(json.loads(reply))

    async def give_back(self, queue: str, leases: Sequence[str], asked: Asked) -> None:
        """Leases that nobody was told of go back to the head, at no attempt's cost."""
        await self.call("Delay", asked, queue=queue, leases=list(leases), delay="0s", keepAttempt=True)

    async def leave(self, queue: str, place: str, asked: Asked) -> None:
        """Gives up a place in line: a stream comes back to it and ends, and with the stream ends the place."""
        stand = {"queue": queue, "stand": {"place": place}}
        replies = self._calls.stream(_SERVICE + "WatchPosition", _packed(stand), asked, is_json=True)
        async with aclosing(replies):
            await anext(replies, None)


def _packed(fields: Mapping[str, object]) -> bytes:
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
