"""Tells whoever waits for room where they stand."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from headway._places import Blocked
from headway._queue import Queue
from headway.cli._output import Output
from headway.cli._telling import instant
from headway.core.error import HeadwayError


def name_of_this_run() -> str:
    """A producer's name that no other run of a command has, and that tells people where it runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@asynccontextmanager
async def showing_place(queue: Queue, producer: str, output: Output) -> AsyncGenerator[None, None]:
    """While the block runs, standard error tells each place of this producer, if it waits."""
    telling = asyncio.create_task(_tell(queue, producer, output))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait({telling})


async def _tell(queue: Queue, producer: str, output: Output) -> None:
    try:
        async with aclosing(queue.watch_blocked(producer)) as places:
            async for place in places:
                if place.position:
                    _write(place, output)
    except HeadwayError as error:  # what matters the put itself says; a queue that it has to make has no bound
        output.notice(f"the place in line is not known: {error}")


def _write(place: Blocked, output: Output) -> None:
    if output.as_json:
        told = {"position": place.position, "length": place.length, "as_of": instant(place.as_of)}
        output.record_error({"producer": place.producer, **told})
    else:
        output.notice(f"number {place.position} of {place.length} waiting for room")
