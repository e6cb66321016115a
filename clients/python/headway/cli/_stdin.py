"""Reads standard input without holding up the event loop, and without waiting for more than is there."""

import asyncio
import os
from collections.abc import AsyncIterator

_READ_BYTES = 256 * 1024


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields what is there, as soon as it is, until the end."""
    loop = asyncio.get_running_loop()
    while True:
        ready = loop.create_future()
        try:
            loop.add_reader(descriptor, _mark, ready)
        except PermissionError:
            pass  # a regular file, always ready; epoll will not watch it
        else:
            try:
                await ready
            finally:
                loop.remove_reader(descriptor)
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            continue  # somebody made it non-blocking and took what was there
        if not chunk:
            return
        yield chunk


def _mark(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yields the lines that are there, without their newlines, in batches; a last line may lack its newline."""
    begun: list[bytes] = []
    async for chunk in read_chunks(descriptor):
        head, *rest = chunk.split(b"\n")
        begun.append(head)
        if rest:
            lines = [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
            yield lines
    last = b"".join(begun)
    if last:
        yield [last]


async def read_all(descriptor: int) -> bytes:
    """Everything until the end."""
    return b"".join([chunk async for chunk in read_chunks(descriptor)])
