"""Wires and stores that fail in one particular way: replies held, late, or not the right ones; errors on demand."""

from __future__ import annotations

import asyncio
import random
import time
from types import TracebackType
from typing import Self

from harness import FaultProxy

_CHUNK = 65_536
# In the answer to who listens, which each service asks for twice a second.
WAKE_CHANNEL = b":x:wake:"
# What a channel says on its own; nobody asked.
TOLD = b"*3\r\n$7\r\nmessage\r\n"
# The reply of some other script call: its echo is nobody's.
STRAY = b"*2\r\n$16\r\n0123456789abcdef\r\n$2\r\nok\r\n"


class ReplyProxy(FaultProxy):
    """Passes requests on at once; what the store answers is the test's to hold, to delay, to precede and, as in any
    FaultProxy, to lose.

    `delay_s`: every chunk of an answer comes at random 0 to so many seconds late, in order; `late_s`: every one, by so
    many. `answers_left`: after so many answers (of scripts and scans) all are held. `stray`: bytes that come once
    before the next answer of a script. `lost_answers`: so many answers of scripts are lost, and their connections cut.
    `passed_at`: when each of the payloads asked for in `watched` passed.
    """

    def __init__(self, upstream: int, *, seed: int = 1) -> None:
        super().__init__(upstream, seed=seed)
        self.delay_s = 0.0
        self.late_s = 0.0
        self.answers_left: int | None = None
        self.stray = b""
        self.lost_answers = 0
        self.watched: set[bytes] = set()
        self.passed_at: dict[bytes, float] = {}
        self._late = random.Random(seed)
        self._answering = asyncio.Event()
        self._answering.set()

    async def _count(self, chunk: bytes) -> None:
        """Holds what is beyond `answers_left`."""
        is_answer = chunk.startswith(b"*") and not chunk.startswith(TOLD) and WAKE_CHANNEL not in chunk
        if self.answers_left is None or not is_answer:
            return
        if self.answers_left == 0:
            self.hold_replies()
            await self._answering.wait()
        else:
            self.answers_left -= 1

    def hold_replies(self) -> None:
        """From now on the store hears and nobody hears the store."""
        self._answering.clear()

    def pass_replies(self) -> None:
        """Ends the holding: what was held comes now."""
        self.answers_left = None
        self._answering.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._answering.wait()
            if self.delay_s or self.late_s:
                await asyncio.sleep(self.late_s + self._late.uniform(0, self.delay_s))
            await self._count(chunk)
            is_of_script = chunk.startswith(b"*") and b"$16\r\n" in chunk[:12]
            if self.lost_answers and is_of_script:
                self.lost_answers -= 1
                return
            if self.stray and is_of_script:
                chunk, self.stray = self.stray + chunk, b""
            for payload in [one for one in self.watched if one in chunk]:
                self.passed_at[payload] = time.monotonic()
                self.watched.discard(payload)
            if self._random.random() < self.drop_replies:
                return
            if self._random.random() < self.reset_mid_reply:
                writer.write(chunk[: len(chunk) // 2])
                await writer.drain()
                self._reset(writer)
                return
            writer.write(chunk)
            await writer.drain()


class RefusingStore:
    """Something like a store that lets clients connect and subscribe, and refuses every script with one error line."""

    def __init__(self, error: str = "LOADING the data") -> None:
        self.error = error
        self.port = 0
        self.scripts = 0  # asked for so far
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where the service should look for its store."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(self._answer([part.upper() for part in await self._command(reader)]))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):  # the client went away
            pass
        finally:
            writer.close()

    @staticmethod
    async def _command(reader: asyncio.StreamReader) -> list[bytes]:
        parts = []
        for _ in range(int((await reader.readuntil(b"\r\n"))[1:])):
            size = int((await reader.readuntil(b"\r\n"))[1:])
            parts.append((await reader.readexactly(size + 2))[:-2])
        return parts

    def _answer(self, command: list[bytes]) -> bytes:
        match command:
            case [b"EVALSHA" | b"EVAL", *_]:
                self.scripts += 1
                return f"-{self.error}\r\n".encode()
            case [b"INFO" | b"SCAN" | b"CONFIG", *_]:
                return f"-{self.error}\r\n".encode()
            case [b"CLIENT", b"ID"]:
                return b":1\r\n"
            case [b"EXISTS", *_]:
                return b":0\r\n"
            case [b"SUBSCRIBE", *channels]:
                return b"".join(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" for _ in channels)
            case _:
                return b"+OK\r\n"
