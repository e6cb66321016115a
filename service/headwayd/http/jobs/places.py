"""X-Queue: the place in line that belongs to a connection.

    GET /queues/jobs/messages           503
    X-Queue: 0.1                        X-Queue: position=2,length=5,limit=4,pollMin=45,pollMax=120
                                        Retry-After: 45

Whoever asks again on the same connection, between pollMin and pollMax seconds after that answer, keeps the place, and
is answered with the job when it is its turn. The rules are those of every poller (docs/protocol.md, section 18). When
the connection ends its places are given up.

A connection has one place for each queue and caller: what comes by a proxy may be several callers'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from headwayd.domain.calls import Asked, CallFailed, Code, Why
from headwayd.domain.hints import PollHints
from headwayd.domain.xqueue import format_xqueue, parse_xqueue
from headwayd.http.answers import result
from headwayd.http.connection import Connection, connection_of
from headwayd.http.jobs.calling import Calling

_HEADER, _VERSION = "x-queue", "0.1"
_LEAVE_S = 10.0  # afterwards the place lapses by itself
_MOST_LEAVING = 16  # at a time: all connections may end at once, and others have calls to make
# A call that named the place and broke off keeps it a moment later, and then it can be left.
_AGAIN_S = (0.2, 1.0, 3.0)
_MOST_PLACES = 100  # of one connection
_GONE = ("PLACE_LOST", "QUEUE_NOT_FOUND", "QUEUE_DELETED", "QUEUE_DRAINED")

log: Any = structlog.get_logger(__name__)


def speaks(request: Request) -> bool:
    """Whether the client knows X-Queue at all, in whichever version: then no job is 503 to it, and no empty list."""
    return _HEADER in request.headers


def may_queue(request: Request) -> bool:
    """Whether it says that it knows the one version that there is here."""
    said = ",".join(request.headers.getlist(_HEADER))
    return _VERSION in (each.strip() for each in said.split(","))


@dataclass(frozen=True, slots=True)
class _Held:
    """A place, who holds it (what it asked with, and the context of that), and how long it is waited for."""

    place: str
    asked: Asked
    poll_max_s: float
    context: Context = field(default_factory=copy_context)


class Places:
    """Those of all connections."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._held: dict[Connection, dict[tuple[str, str], _Held]] = {}
        self._asking: set[tuple[Connection, tuple[str, str]]] = set()
        self._passing: set[asyncio.Task[Any]] = set()  # that ask and do not wait: they may be given a place at the end
        self._leaving: set[asyncio.Task[None]] = set()
        self._may_leave = asyncio.Semaphore(_MOST_LEAVING)
        self.is_closed = False

    async def get(self, request: Request, queue: str, asked: Asked, **fields: object) -> dict[str, Any]:
        """The answer of a Get by one who stands in line: deliveries, or a standing. Raises CallFailed; then the place
        is kept, if there still is one."""
        connection, key = connection_of(request.scope), (queue, request.headers.get("authorization", ""))
        own = self._own(connection)
        held = own.get(key)
        if held is None and len(own) >= _MOST_PLACES:
            raise _too_many()
        self._asking.add((connection, key))
        if "wait" not in request.query_params and (task := asyncio.current_task()) is not None:
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)
        try:
            try:
                answer = await self._get(queue, asked, held, fields)
            except CallFailed as error:
                if error.why.reason != "PLACE_LOST" or held is None:
                    raise
                answer = await self._get(queue, asked, None, fields)  # at the end of the line
        except CallFailed as error:
            if error.why.reason in _GONE:
                self._forget(connection, key)
            raise
        finally:
            self._asking.discard((connection, key))
        if standing := answer.get("standing"):
            self._hold(connection, key, _Held(standing["place"], asked, _seconds(standing["pollMax"])))
            if self.is_closed:  # meanwhile: nobody else gives it up
                self._ended(connection)
        else:
            self._forget(connection, key)
        return answer

    async def _get(self, queue: str, asked: Asked, held: _Held | None, fields: Mapping[str, object]) -> dict[str, Any]:
        place = None if held is None else held.place
        return await self._calling.call("Get", asked, queue=queue, stand=True, place=place, **fields)

    def _own(self, connection: Connection) -> dict[tuple[str, str], _Held]:
        return self._held.get(connection, {})

    def _hold(self, connection: Connection, key: tuple[str, str], held: _Held) -> None:
        if connection not in self._held:
            self._held[connection] = {key: held}
            connection.on_end(lambda: self._ended(connection))
        else:
            self._held[connection][key] = held
        self._stay(connection)

    def _forget(self, connection: Connection, key: tuple[str, str]) -> None:
        self._own(connection).pop(key, None)
        self._stay(connection)

    def _stay(self, connection: Connection) -> None:
        """The connection may be silent for as long as one of its places is waited for."""
        connection.silence_s = max((held.poll_max_s for held in self._own(connection).values()), default=0.0)

    def _ended(self, connection: Connection) -> None:
        for key, held in self._held.pop(connection, {}).items():
            again_s = _AGAIN_S if (connection, key) in self._asking else ()
            task = asyncio.create_task(self._leave(key[0], held, again_s), name=f"leave:{key[0]}", context=held.context)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, queue: str, held: _Held, again_s: Sequence[float]) -> None:
        for pause_s in (0.0, *again_s):
            await asyncio.sleep(pause_s)
            try:
                async with self._may_leave, asyncio.timeout(_LEAVE_S):
                    await self._calling.leave(queue, held.place, held.asked)
            except (CallFailed, TimeoutError) as error:
                log.debug("http.place_not_left", queue=queue, error=str(error))

    async def close(self) -> None:
        """Gives up all places, also those that calls under way still get, and waits until that is done. Nobody gets one
        any more."""
        self.is_closed = True
        for connection in list(self._held):
            self._ended(connection)
        if self._passing:
            await asyncio.wait(set(self._passing), timeout=_LEAVE_S)
        if self._leaving:
            await asyncio.wait(set(self._leaving))


def _too_many() -> CallFailed:
    why = Why("OVERLOADED", {"limit": "places_per_connection"}, 1_000)
    return CallFailed(Code.RESOURCE_EXHAUSTED, f"a connection has at most {_MOST_PLACES} places", why=why)


def told(standing: Mapping[str, Any]) -> Response:
    """The place, by X-Queue."""
    hints = PollHints(
        poll_min_ms=round(_seconds(standing["pollMin"]) * 1000), poll_max_ms=round(_seconds(standing["pollMax"]) * 1000)
    )
    text = format_xqueue(
        position=int(standing["position"]),
        length=int(standing["length"]),
        limit=standing.get("limit", 0),
        hints=hints,
    )
    headers = {_HEADER: text, "retry-after": str(parse_xqueue(text).poll_min_s)}
    return result(_nothing("nothing can be leased now: the place in line is kept"), 503, headers=headers)


def nothing_now() -> Response:
    """Nothing, and no place."""
    return result(_nothing("nothing can be leased now, and no place in line is kept without X-Queue: 0.1"), 503)


def _nothing(message: str) -> dict[str, str]:
    return {"code": "unavailable", "message": message}


def _seconds(span: str) -> float:
    return float(span.removesuffix("s"))
