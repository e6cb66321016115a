"""How the HTTP port itself refuses, before any call: the same JSON that its doors give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

# The code that goes with a status, by gRPC's names, as Connect writes them.
_CODES = {
    400: "invalid_argument",
    403: "permission_denied",
    405: "unimplemented",
    408: "deadline_exceeded",
    413: "invalid_argument",
    415: "invalid_argument",
    421: "permission_denied",
    503: "resource_exhausted",
}


def refusal(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that no door is asked about."""
    return Response(_body(status, message), status, headers, media_type="application/json")


def refused_at_once(status: int, message: str, *, retry_s: int) -> bytes:
    """The same on the wire, for a connection whose request nobody reads."""
    body = _body(status, message)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: {retry_s}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _body(status: int, message: str) -> bytes:
    return json.dumps({"code": _CODES[status], "message": message}).encode() + b"\n"
