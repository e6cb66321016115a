"""A store that refuses every command with one error, for states that are hard to bring a real server into."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class RefusingStore:
    """Answers `error` to everything but the greetings of a connection. Put it behind a FaultProxy."""

    # What a server answers though it is loading.
    _GREETINGS = frozenset({b"CLIENT", b"SELECT", b"AUTH"})

    def __init__(self, error: str) -> None:
        self.port = 0
        self.refused = 0
        self._error = f"-{error}\r\n".encode()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while header := await reader.readline():
                words = []
                for _ in range(int(header[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                if words[0].upper() in self._GREETINGS:
                    writer.write(b"+OK\r\n")
                else:
                    self.refused += 1
                    writer.write(self._error)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
