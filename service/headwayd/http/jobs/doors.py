"""The verbs, after RQMS (https://github.com/natevw/RQMS), so that `curl` alone puts, sets, takes and finishes a job.

    PUT    /queues/QUEUE               makes a queue; the body is its policy       201, 200 (it is there), 409 (another)
    POST   /queues/QUEUE/messages      puts the body as a job                      201, 409 (the id is known)
    PUT    /queues/QUEUE/messages/ID   sets a named job, whatever it was           201
    GET    /queues/QUEUE/messages      takes jobs                                  200, 503 (none)
    DELETE /queues/QUEUE/messages      finishes the job of a ticket                200, 409 (too late), 404 (gone)

What RQMS calls a ticket is a lease here. Each verb is a call of the service: the same rights, limits and errors.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from headwayd.domain.calls import Asked, CallFailed, Code, Why
from headwayd.http import answers
from headwayd.http.bodies import Bodies, Incoming
from headwayd.http.connecting import Calls
from headwayd.http.connection import connection_of
from headwayd.http.jobs import items, places
from headwayd.http.jobs.asking import (
    Gone,
    asked_by,
    body_of,
    count_of,
    is_json,
    names_of,
    query_of,
    read_json,
    read_of_stranger,
    span_of,
    too_large,
    type_of,
    while_there,
)
from headwayd.http.jobs.calling import Calling
from headwayd.http.jobs.names import JobsRoute, Named, path_of
from headwayd.http.origins import is_hidden
from headwayd.http.refusing import refusal

_Verb = Callable[[Request, Named], Awaitable[Response]]
_MOST_TICKET_BYTES = 4_096
_HIDDEN = (
    "a browser does not tell a plain HTTP address whose page asks: take jobs by POST /headway.v1.QueueService/Get, by "
    "https, or, if this is no browser, with another User-Agent"
)
# What a ticket that finishes nothing has come to.
_TOO_LATE = {
    "STALE": (Code.FAILED_PRECONDITION, "LEASE_STALE", "somebody else has the job, or it was set anew"),
    "DEAD": (Code.FAILED_PRECONDITION, "LEASE_STALE", "the job is dead: its attempts are used up"),
    "GONE": (Code.NOT_FOUND, "LEASE_GONE", "there is no job of this ticket (any more)"),
}


class Jobs:
    """The door. `close` it before the service stops taking calls: it gives up the places of connections."""

    def __init__(self, calls: Calls, *, most_bytes: int, most_message_bytes: int, incoming: Incoming) -> None:
        self._calling = Calling(calls)
        self._places = places.Places(self._calling)
        self._most_bytes = most_bytes
        self._most_message_bytes = most_message_bytes
        self._incoming = incoming

    @property
    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        verbs = {
            "queue": {"PUT": self._make},
            "messages": {"GET": self._take, "POST": self._put, "DELETE": self._finish},
            "message": {"POST": self._put, "PUT": self._set},
        }
        told = {shape: {name: _told(verb) for name, verb in each.items()} for shape, each in verbs.items()}

        def bounded(app: ASGIApp) -> Bodies:
            return Bodies(
                app,
                most_bytes=self._most_bytes,
                incoming=self._incoming,
                too_large=lambda size, most: answers.failed(too_large(size, most)),
            )

        return [JobsRoute(told, bounded)]

    async def close(self) -> None:
        """Gives up all places, and gives no more."""
        await self._places.close()

    async def _make(self, request: Request, named: Named) -> Response:
        queue, _ = names_of(named)
        query_of(request, ())
        body = await body_of(request, self._most_bytes)
        policy = read_of_stranger(body, "the body") if body.strip() else None
        if not isinstance(policy, dict | None):
            raise answers.improper("the body", "must be a policy, as a JSON object")
        answer = await self._calling.call("Create", asked_by(request), queue=queue, policy=policy)
        return answers.result(answer["queue"], 201 if answer.get("created") else 200)

    async def _put(self, request: Request, named: Named) -> Response:
        queue, named_id = names_of(named)
        query = query_of(request, ("wait",) if named_id is not None else ("id", "wait"))
        message_id = query.get("id") if named_id is None else named_id
        return await self._accept(request, queue, message_id, span_of(query, "wait"), "ON_DUPLICATE_REJECT")

    async def _set(self, request: Request, named: Named) -> Response:
        queue, message_id = names_of(named)
        query = query_of(request, ("wait",))
        return await self._accept(request, queue, message_id, span_of(query, "wait"), "ON_DUPLICATE_REPLACE")

    async def _accept(
        self, request: Request, queue: str, message_id: str | None, wait: str | None, on_duplicate: str
    ) -> Response:
        if message_id == "":
            raise answers.improper("id", "must not be empty")
        kind = type_of(request)
        body = await body_of(request, self._most_bytes)
        if is_json(kind) and len(body) <= self._most_message_bytes:  # else it is refused in any case
            read_json(body, "the body")
        put = self._calling.call(
            "Put",
            asked_by(request),
            queue=queue,
            messages=[items.message_of(body, message_id, kind)],
            wait=wait,
            onDuplicate=on_duplicate,
        )
        answer = await (put if wait is None else while_there(request, put))
        (put_result,) = answer["results"]
        if error := put_result.get("error"):
            raise answers.of_item(error)
        told = {"id": put_result["id"], "position": int(put_result.get("position", 0))}
        return answers.result(told, 201, headers={"location": path_of(queue, put_result["id"])})

    async def _take(self, request: Request, named: Named) -> Response:
        if is_hidden(request.headers):  # of all that is asked by GET only this changes something
            return refusal(403, _HIDDEN)
        queue, _ = names_of(named)
        query = query_of(request, ("count", "time", "wait"))
        asked, is_list = asked_by(request), "count" in query or "time" in query
        fields: dict[str, object] = {
            "maxMessages": count_of(query, "count"),
            "lease": span_of(query, "time"),
            "wait": span_of(query, "wait"),
        }
        if places.may_queue(request) and not self._places.is_closed:
            get = self._places.get(request, queue, asked, **fields)
        else:
            get = self._calling.call("Get", asked, queue=queue, **fields)
        # A call that does not wait is seen to its end: who keeps a place for it learns the name of the place.
        answer = await (while_there(request, get) if "wait" in query else get)
        deliveries = answer.get("deliveries", [])
        if deliveries and connection_of(request.scope).is_over:
            await self._calling.give_back(queue, [each["lease"] for each in deliveries], asked)
            raise Gone
        if standing := answer.get("standing"):
            return places.told(standing)
        if not deliveries and (places.speaks(request) or not is_list):
            return places.nothing_now()
        return items.listed(deliveries) if is_list else items.as_it_is(deliveries[0])

    async def _finish(self, request: Request, named: Named) -> Response:
        queue, _ = names_of(named)
        query = query_of(request, ("ticket",))
        body = await body_of(request, self._most_bytes)
        ticket, outcome = (query["ticket"], body) if "ticket" in query else (_ticket(body), b"")
        answer = await self._settle(queue, ticket, outcome, asked_by(request))
        settled = answer["results"][0]["settled"].removeprefix("SETTLED_")
        if settled in _TOO_LATE:
            code, reason, text = _TOO_LATE[settled]
            raise CallFailed(code, text, why=Why(reason, {"queue": queue}))
        return answers.result({"settled": settled})

    async def _settle(self, queue: str, ticket: str, outcome: bytes, asked: Asked) -> dict[str, Any]:
        encoded = items.encoded(outcome) if outcome else None
        return await self._calling.call("Ack", asked, queue=queue, leases=[ticket], result=encoded)


def _ticket(body: bytes) -> str:
    """Of a body that is nothing else: as it is, or as a JSON text."""
    try:
        text = body[: _MOST_TICKET_BYTES + 1].decode().strip()
        ticket = json.loads(text) if text.startswith('"') else text
    except ValueError:
        ticket = None
    if not isinstance(ticket, str) or not ticket or len(body) > _MOST_TICKET_BYTES:
        raise answers.improper("ticket", "must be the query's ticket, or the body")
    return ticket


def _told(verb: _Verb) -> _Verb:
    """The same verb; what it refuses is told."""

    async def answered(request: Request, named: Named) -> Response:
        try:
            return await verb(request, named)
        except CallFailed as error:
            return answers.failed(error)
        except Gone:
            return refusal(408, "the request did not come in time", headers={"connection": "close"})

    return answered
