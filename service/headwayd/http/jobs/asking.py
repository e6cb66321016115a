"""What a request says beside its path: numbers in its query, a body, and who sends it. All raise CallFailed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from headwayd.domain.calls import Asked, CallFailed, Code, Why
from headwayd.domain.json_text import MOST_MARKS, marks_of, too_many
from headwayd.http.answers import improper
from headwayd.http.gathering import hung_up
from headwayd.http.jobs.names import Named, NotUtf8

_COUNT = re.compile(r"[0-9]{1,9}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_FORM = "application/x-www-form-urlencoded"  # what curl says of any data, so it says nothing

_T = TypeVar("_T")


class Gone(Exception):
    """Whoever asked has gone, or did not send the whole request in time."""


def asked_by(request: Request) -> Asked:
    """What the service learns of the caller."""
    client = request.client
    return Asked(metadata=request.headers.items(), peer="" if client is None else f"{client.host}:{client.port}")


def names_of(named: Named) -> tuple[str, str | None]:
    """Queue and id."""
    try:
        return named.queue_name, named.message_id
    except NotUtf8:
        raise improper("the path", "is not UTF-8") from None


def query_of(request: Request, known: Collection[str]) -> dict[str, str]:
    """What the query says. What is not known, or said twice, is refused: it would not do what its sender means."""
    said: dict[str, str] = {}
    try:
        pairs = parse_qsl(request.url.query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise improper("the query", "is not UTF-8") from None
    for name, value in pairs:
        if name not in known:
            raise improper("the query", f"has {name!r}, which is not known here (known are {', '.join(known)})")
        if name in said:
            raise improper(name, "is given twice")
        said[name] = value
    return said


def count_of(query: dict[str, str], name: str) -> int | None:
    """A whole number; None: not given."""
    if name not in query:
        return None
    if not _COUNT.fullmatch(query[name]) or not int(query[name]):
        raise improper(name, "must be a whole number, 1 or more")
    return int(query[name])


def span_of(query: dict[str, str], name: str) -> str | None:
    """Seconds, as the schema's JSON has a span; None: not given."""
    if name not in query:
        return None
    if not _SECONDS.fullmatch(query[name]):
        raise improper(name, "must be a number of seconds")
    return f"{query[name]}s"


def too_large(size: int, most_bytes: int) -> CallFailed:
    """Of a body that has so many bytes, or more, if it comes in chunks."""
    return _too_large(f"the request has more than {most_bytes} bytes", size, most_bytes)


def _too_large(text: str, size: int, most: int) -> CallFailed:
    metadata = {"field": "request", "limit": str(most), "size": str(size)}
    return CallFailed(Code.INVALID_ARGUMENT, text, why=Why("TOO_LARGE", metadata))


async def body_of(request: Request, most_bytes: int) -> bytes:
    """All of it. Raises Gone."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most_bytes:
                raise too_large(size, most_bytes)
            parts.append(part)
    except ClientDisconnect:
        raise Gone from None
    return b"".join(parts)


def type_of(request: Request) -> str:
    """Of the body; "" if nothing says it."""
    said = request.headers.get("content-type", "").strip()
    return "" if said.lower().startswith(_FORM) else said


def is_json(content_type: str) -> bool:
    """Whether this type is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def read_of_stranger(body: bytes, what: str) -> Any:
    """The value, before it is known who asks. Raises CallFailed if there is none, or it has very many parts."""
    if (marks := marks_of(body)) > MOST_MARKS:
        raise _too_large(f"{what} {too_many(marks)}", marks, MOST_MARKS)
    return read_json(body, what)


def read_json(body: bytes, what: str) -> Any:
    """The value. Raises CallFailed if there is none: constants that are no JSON count as such."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise improper(what, "is no JSON") from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


async def while_there(request: Request, call: Awaitable[_T]) -> _T:
    """What the call gives. When the client hangs up before, it is cancelled, and Gone is raised once it has ended, but
    not if it was just done."""
    task = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(hung_up(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise Gone
    return task.result()
