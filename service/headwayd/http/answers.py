"""What is answered: results, and errors as JSON with the status that says the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from headwayd.domain.calls import CallFailed, Code, Why

_STATUSES = {
    Code.CANCELED: 503,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 503,
    Code.FAILED_PRECONDITION: 409,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
# Where the reason says more than the code: whose turn it is to wait.
_OF_REASONS = {"POLL_TOO_SOON": 429, "QUOTA_EXCEEDED": 429, "TOO_LARGE": 413, "QUEUE_PAUSED": 503}

_RETRY_AFTER_MS = 1_000  # of items, which do not say

# What comes from this door is for nobody's cache, and nothing that a browser should run or guess at.
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


def result(content: object, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """JSON, and a line's end for people at a terminal."""
    body = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    return bytes_of(body, "application/json", status, headers=headers)


def bytes_of(
    body: bytes, content_type: str, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """These bytes. Their type is written as it is given: `Response` by itself adds a charset to texts."""
    return Response(body, status, {**_HEADERS, **(headers or {}), "content-type": content_type})


def status_of(error: CallFailed) -> int:
    """The status that says the same."""
    return _OF_REASONS.get(error.why.reason, _STATUSES[error.code])


def told_of(error: CallFailed) -> dict[str, Any]:
    """The same error, as JSON."""
    why = error.why
    told: dict[str, Any] = {"code": error.code.name.lower(), "reason": why.reason, "message": error.text}
    if why.metadata:
        told["metadata"] = dict(why.metadata)
    if why.retry_after_ms is not None:
        told["retry_after"] = why.retry_after_ms / 1000
    return told


def failed(error: CallFailed) -> Response:
    """The same error, as an answer."""
    why = error.why
    status = status_of(error)
    headers: dict[str, str] = {}
    if why.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(why.retry_after_ms / 1000)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return result(told_of(error), status, headers=headers)


def of_item(status: Mapping[str, Any]) -> CallFailed:
    """The error of one item of a batch, as if it were the call's."""
    code = Code(status["code"])
    after_ms = _RETRY_AFTER_MS if _STATUSES[code] == 503 else None
    why = Why(status["reason"].removeprefix("ERROR_REASON_"), status.get("metadata", {}), after_ms)
    return CallFailed(code, status["message"], why=why)


def improper(field: str, text: str) -> CallFailed:
    """A request that says something improper."""
    return CallFailed(Code.INVALID_ARGUMENT, f"{field} {text}", why=Why("FIELD_INVALID", {"field": field}))
