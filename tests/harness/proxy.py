"""A faulty wire between the service and its store: a TCP or unix proxy that misbehaves on command."""

import asyncio
import random
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = 65536


class FaultProxy:
    """Passes bytes on to `upstream` (a port of 127.0.0.1, or a unix socket) until told otherwise.

    `refuse`: new connections are reset at once, standing ones too.
    `silent`: takes requests in, and passes nothing on in either direction.
    `swallowed`: not None: takes requests in, and keeps them here instead of passing them on.
    `drop_replies`: probability that a chunk from the store is swallowed and its connection cut: the request was done,
    the answer is lost.
    `reset_mid_reply`: probability that half of a chunk from the store is sent before the connection is reset.
    """

    def __init__(self, upstream: int | Path, *, listen: Path | None = None, seed: int = 1) -> None:
        self.upstream = upstream
        self.listen = listen
        self.port = 0
        self.refuse = False
        self.drop_replies = 0.0
        self.reset_mid_reply = 0.0
        self.swallowed: bytes | None = None
        self.connections = 0  # accepted so far
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where the service should look for its store."""
        return f"unix://{self.listen}?db=0" if self.listen else f"redis://127.0.0.1:{self.port}/0"

    @property
    def silent(self) -> bool:
        """True while nothing is passed on."""
        return not self._flowing.is_set()

    @silent.setter
    def silent(self, value: bool) -> None:
        if value:
            self._flowing.clear()
        else:
            self._flowing.set()

    def cut(self, *, refuse: bool = True) -> None:
        """Resets every connection, and refuses new ones until `restore`."""
        self.refuse = refuse
        for writer in list(self._writers):
            self._reset(writer)

    def restore(self) -> None:
        """Behaves from now on."""
        self.refuse, self.drop_replies, self.reset_mid_reply = False, 0.0, 0.0
        self.silent, self.swallowed = False, None

    async def __aenter__(self) -> Self:
        if self.listen:
            self._server = await asyncio.start_unix_server(self._accept, self.listen)
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
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

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        except OSError:  # either side went away
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            self._reset(writer)
            return
        if isinstance(self.upstream, Path):
            store_reader, store_writer = await asyncio.open_unix_connection(self.upstream)
        else:
            store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            asking = asyncio.create_task(self._ask(reader, store_writer))
            answering = asyncio.create_task(self._answer(store_reader, writer))
            try:
                await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (asking, answering):
                    task.cancel()
                await asyncio.gather(asking, answering, return_exceptions=True)
        finally:
            store_writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            if self.swallowed is not None:
                self.swallowed += chunk
                continue
            writer.write(chunk)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            if self._random.random() < self.drop_replies:
                return
            if self._random.random() < self.reset_mid_reply:
                writer.write(chunk[: len(chunk) // 2])
                await writer.drain()
                self._reset(writer)
                return
            writer.write(chunk)
            await writer.drain()

    @staticmethod
    def _reset(writer: asyncio.StreamWriter) -> None:
        """Closes with RST where there is such a thing (TCP)."""
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
