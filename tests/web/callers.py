"""Callers without gRPC: Connect with JSON or protobuf, and gRPC-Web, by a stock HTTP client."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from google.protobuf import json_format
from google.protobuf.message import Message as ProtoMessage
from google.rpc import status_pb2

from wire.calls import SLACK_S

CODES = (
    "ok canceled unknown invalid_argument deadline_exceeded not_found already_exists permission_denied"
    " resource_exhausted failed_precondition aborted out_of_range unimplemented internal unavailable data_loss"
    " unauthenticated"
).split()
END_OF_STREAM, TRAILERS = 0x02, 0x80


@dataclass
class Told:
    """How a call ended: the number of its code, and details as type and bytes."""

    code: int = 0
    text: str = ""
    details: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def reasons(self) -> str:
        """The details as text, to look for a reason in."""
        return repr(self.details)


def _of_connect(error: dict[str, Any]) -> Told:
    details = [(each["type"], base64.b64decode(each["value"] + "==")) for each in error.get("details", [])]
    return Told(CODES.index(error["code"]), error.get("message", ""), details)


def _of_trailers(raw: bytes) -> Told:
    pairs = dict(
        line.split(": ", 1) if ": " in line else line.split(":", 1) for line in raw.decode().splitlines() if line
    )
    packed = pairs.get("grpc-status-details-bin", "")
    status = status_pb2.Status.FromString(base64.b64decode(packed + "==")) if packed else status_pb2.Status()
    return Told(
        int(pairs["grpc-status"]),
        status.message,
        [(each.type_url.rpartition("/")[2], each.value) for each in status.details],
    )


def framed(data: bytes, flags: int = 0) -> bytes:
    """As Connect's streams and gRPC-Web have it."""
    return struct.pack(">BI", flags, len(data)) + data


async def frames(response: httpx.Response) -> AsyncIterator[tuple[int, bytes]]:
    """Flags and content of each frame, as they come."""
    rest = b""
    async for chunk in response.aiter_raw():
        rest += chunk
        while len(rest) >= 5:
            flags, size = struct.unpack(">BI", rest[:5])
            if len(rest) < 5 + size:
                break
            yield flags, rest[5 : 5 + size]
            rest = rest[5 + size :]


class Stream:
    """The replies of one stream. `told` is how it ended, once it has."""

    def __init__(self, response: httpx.Response, answer: type[ProtoMessage], *, is_json: bool) -> None:
        self._frames = frames(response)
        self._answer = answer
        self._is_json = is_json
        self.told: Told | None = None

    async def next(self) -> Any:
        """The next reply; None at the end."""
        async for flags, data in self._frames:
            if flags & TRAILERS:
                self.told = _of_trailers(data)
                return None
            if flags & END_OF_STREAM:
                error = json.loads(data).get("error")
                self.told = _of_connect(error) if error else Told()
                return None
            if self._is_json:
                return json_format.Parse(data, self._answer())
            return self._answer.FromString(data)
        return None


@dataclass(frozen=True)
class Caller:
    """One way to call. `kind` is json, proto or grpc-web."""

    http: httpx.AsyncClient
    kind: str

    @property
    def _is_json(self) -> bool:
        return self.kind == "json"

    def _content(self, request: ProtoMessage) -> bytes:
        return json_format.MessageToJson(request).encode() if self._is_json else request.SerializeToString()

    async def call(
        self, path: str, request: ProtoMessage, answer: type[ProtoMessage], headers: dict[str, str] | None = None
    ) -> Any:
        """The answer of a call of one, or how it failed."""
        if self.kind == "grpc-web":
            async with self.stream(path, request, answer, headers) as stream:
                reply = await stream.next()
                if reply is not None:
                    await stream.next()
                return reply if stream.told and stream.told.code == 0 else stream.told
        response = await self.http.post(
            path,
            content=self._content(request),
            headers={"content-type": f"application/{self.kind}", **(headers or {})},
        )
        if response.status_code != httpx.codes.OK:
            return _of_connect(response.json())
        return json_format.Parse(response.text, answer()) if self._is_json else answer.FromString(response.content)

    @asynccontextmanager
    async def stream(
        self, path: str, request: ProtoMessage, answer: type[ProtoMessage], headers: dict[str, str] | None = None
    ) -> AsyncIterator[Stream]:
        """A call that streams its replies. Left, the connection is closed."""
        kind = "application/grpc-web+proto" if self.kind == "grpc-web" else f"application/connect+{self.kind}"
        timeout = httpx.Timeout(SLACK_S, read=60)
        async with self.http.stream(
            "POST",
            path,
            content=framed(self._content(request)),
            headers={"content-type": kind, **(headers or {})},
            timeout=timeout,
        ) as response:
            yield Stream(response, answer, is_json=self._is_json)
