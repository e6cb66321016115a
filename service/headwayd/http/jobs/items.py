"""A job as it is handed out: as one of a list in JSON, or as the payload itself, with headers that tell the rest."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from headwayd.domain.calls import CallFailed
from headwayd.http.answers import bytes_of
from headwayd.http.jobs.asking import is_json, read_json

# The header of a message in which the type of its payload is kept.
TYPE_KEY = "content-type"
_UNKNOWN = "application/octet-stream"
# What may stand in a header of HTTP as it is; whoever put the message by another way may have written anything.
_TYPE = re.compile(r"[!-~]+/[!-~]+([ \t]*;[ -~]*)?")


def listed(deliveries: Sequence[Mapping[str, Any]]) -> Response:
    """A list of them, as RQMS has it."""
    items = b",".join(map(_item, deliveries))
    return bytes_of(b'{"items":[' + items + b"]}\n", "application/json")


def as_it_is(delivery: Mapping[str, Any]) -> Response:
    """The payload of one."""
    message = delivery["message"]
    kind = message.get("headers", {}).get(TYPE_KEY, "")
    headers = {
        "headway-ticket": delivery["lease"],
        "headway-id": quote(message["id"], safe=""),
        "headway-attempt": str(delivery["attempt"]),
        "content-disposition": "attachment",  # no browser shows it as a page of this service
    }
    return bytes_of(_payload(message), kind if _TYPE.fullmatch(kind) else _UNKNOWN, headers=headers)


def message_of(payload: bytes, message_id: str | None, kind: str) -> dict[str, Any]:
    """A message to put. One without id and type is only a payload, which takes the least room."""
    return {
        "payload": encoded(payload),
        **({} if message_id is None else {"id": message_id}),
        **({"headers": {TYPE_KEY: kind}} if kind else {}),
    }


def encoded(content: bytes) -> str:
    """As the schema's JSON has bytes."""
    return base64.b64encode(content).decode()


def _payload(message: Mapping[str, Any]) -> bytes:
    return base64.b64decode(message.get("payload", ""))


def _item(delivery: Mapping[str, Any]) -> bytes:
    message = delivery["message"]
    headers = dict(message.get("headers", {}))
    kind = headers.pop(TYPE_KEY, "")
    told = {
        "ticket": delivery["lease"],
        "id": message["id"],
        "attempt": delivery["attempt"],
        "expires_at": delivery["leaseExpiresAt"],
        **({"content_type": kind} if kind else {}),
        **({"headers": headers} if headers else {}),
    }
    name, value = _value(_payload(message), kind)
    return _json(told)[:-1] + b"," + _json(name) + b":" + value + b"}"


def _value(payload: bytes, kind: str) -> tuple[str, bytes]:
    """Its name, and its JSON: what is JSON stays as it is, other text is a text, and what is no text is in base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "base64", _json(encoded(payload))
    if is_json(kind):
        try:
            read_json(payload, "")
        except CallFailed:
            pass
        else:
            return "value", payload
    return "value", _json(text)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
