"""What becomes of messages, as server-sent events: WatchPosition for EventSource, and for `curl`.

    GET  /queues/QUEUE/events?id=A&id=B
    POST /queues/QUEUE/events            {"ids": ["A", "B"]}, for more than a URL holds

https://html.spec.whatwg.org/multipage/server-sent-events.html. Nobody can withdraw anything here: any page may have a
browser send a GET, so an attended watch is for the calls only.
"""

from __future__ import annotations

import json
import random
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headwayd.domain.calls import CallFailed
from headwayd.http.answers import failed, improper, told_of
from headwayd.http.bodies import Bodies, Incoming
from headwayd.http.connecting import Calls
from headwayd.http.gathering import gathered, hung_up, until_gone
from headwayd.http.jobs.asking import asked_by, read_of_stranger, too_large
from headwayd.http.refusing import refusal
from headwayd.http.resuming import Ends

WATCH = "/headway.v1.QueueService/WatchPosition"
KEEP_ALIVE_S = 15.0
_WRITE_EVERY_S = 0.05  # what is told more often than this goes out together
_MOST_AT_ONCE = 500
_RETRY_MS = 1_000  # and up to as much again, so that not all who were sent away come back at once
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


def event_routes(calls: Calls, *, most_bytes: int, incoming: Incoming) -> list[Route]:
    """The door. A body of more than `most_bytes` is refused."""
    app = Bodies(_Events(calls, most_bytes), most_bytes=most_bytes, incoming=incoming, too_large=_too_large)
    return [Route("/queues/{queue:path}/events", app, methods=["GET", "POST"])]


class _Events:
    def __init__(self, calls: Calls, most_bytes: int) -> None:
        self._calls = calls
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            asked = await self._ids(request)
        except ClientDisconnect:
            return
        if isinstance(asked, Response):
            await asked(scope, receive, send)
            return
        await until_gone(self._tell(request, asked, send), hung_up(receive))

    async def _ids(self, request: Request) -> list[str] | Response:
        match request.method:
            case "GET":
                return request.query_params.getlist("id")
            case "POST":
                return await self._ids_of_body(request)
            case _:
                return Response(status_code=405, headers={"allow": "GET, POST"})

    async def _ids_of_body(self, request: Request) -> list[str] | Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refusal(415, "the body must be application/json")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._most_bytes:
                return _too_large(len(body), self._most_bytes)
        try:
            asked = read_of_stranger(bytes(body), "the body")
        except CallFailed as error:
            return failed(error)
        if not isinstance(asked, dict) or list(asked) != ["ids"] or not _are_texts(asked["ids"]):
            return failed(improper("the body", 'must be {"ids": [TEXT, …]}'))
        return list(asked["ids"])

    async def _tell(self, request: Request, ids: list[str], send: Send) -> None:
        queue = request.path_params["queue"]
        ends = Ends(queue, ids, request.headers.get("last-event-id", ""))
        open_ids = ends.open_ids
        if ids and not open_ids:
            await Response(status_code=204)(request.scope, request.receive, send)  # EventSource stops
            return
        order = json.dumps({"queue": queue, "messages": {"ids": open_ids}}).encode()
        replies = self._calls.stream(WATCH, order, asked_by(request), is_json=True)
        is_begun = False
        try:
            async with aclosing(
                gathered(replies, every_s=_WRITE_EVERY_S, idle_s=KEEP_ALIVE_S, most=_MOST_AT_ONCE)
            ) as told:
                async for batch in told:
                    if not is_begun:
                        await _begin(send)
                        is_begun = True
                    await _write(send, _events(batch, ends))
        except CallFailed as error:
            if not is_begun and (error.why.retry_after_ms is None or not _is_event_source(request)):
                await failed(error)(request.scope, request.receive, send)
                return
            if not is_begun:
                await _begin(send)
            await _write(send, _trouble(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _too_large(size: int, most_bytes: int) -> Response:
    return failed(too_large(size, most_bytes))


async def _begin(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await _write(send, b"retry: %d\n\n" % _retry_ms())


async def _write(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


def _events(batch: list[bytes], ends: Ends) -> bytes:
    """A comment if there is nothing to tell. The event id stands with the last end: it says no less than any before."""
    parts, last_end = list[bytes](), -1
    for reply in batch:
        told = json.loads(reply)
        name = next(each for each in ("position", "leased", "finished") if each in told)
        if name == "finished":
            ends.note(told["finished"]["id"])
            last_end = len(parts)
        parts.append(b"event: %b\ndata: %b\n\n" % (name.encode(), reply))
    if last_end >= 0:
        parts[last_end] = b"id: %b\n%b" % (ends.event_id.encode(), parts[last_end])
    return b"".join(parts) or b": still here\n\n"


def _trouble(error: CallFailed) -> bytes:
    retry_ms = max(_retry_ms(), error.why.retry_after_ms or 0)
    said = {**told_of(error), "retryMs": retry_ms}
    return b"retry: %d\nevent: trouble\ndata: %b\n\n" % (retry_ms, json.dumps(said).encode())


def _retry_ms() -> int:
    return _RETRY_MS + random.randrange(_RETRY_MS)


def _is_event_source(request: Request) -> bool:
    """It comes back only if the answer was a stream of events: to any other status it says good-bye for ever."""
    return "text/event-stream" in request.headers.get("accept", "")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
