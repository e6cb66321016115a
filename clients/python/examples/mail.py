"""A producer and a worker on one queue: `python mail.py put Ada Grace`, and `python mail.py work` until Ctrl-C.

`python mail.py revive` tells which messages could not be sent, and has all of them tried again.
"""

import asyncio
import signal
import sys
from datetime import timedelta

import headway


async def put(names: list[str]) -> None:
    """Puts one greeting for each name; one that waits already, or was sent in the last minute, is left as it is."""
    async with headway.connect() as client:
        queue = client.queue("example-mail")
        await queue.create(bound=1000, max_attempts=3, min_backoff=timedelta(seconds=2))
        for name in names:
            result = await queue.put(
                f"Hello, {name}".encode(), id=name, on_duplicate="keep", wait=timedelta(seconds=10)
            )
            said = "is known already" if result.deduplicated else f"has position {result.position}"
            sys.stdout.write(f"{name} {said}\n")


async def send(lease: headway.Lease) -> bytes:
    """Handles one message. Returning acks it, with a result; raising has it tried again after the queue's backoff."""
    sys.stdout.write(f"attempt {lease.attempt}: {lease.payload.decode()}\n")
    return b"sent"


async def work() -> None:
    """Handles messages, four at a time, until Ctrl-C; then finishes what it holds."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with headway.connect() as client:
        await client.queue("example-mail").run(send, concurrency=4, stop=stop)


async def revive() -> None:
    """Puts the dead back, ten a second."""
    async with headway.connect() as client:
        queue = client.queue("example-mail")
        async for dead in queue.dead(without_payloads=True):
            sys.stdout.write(f"{dead.message.id} failed {dead.failures} times, at last with: {dead.last_error}\n")
        async for progress in queue.redrive(rate=10):
            sys.stdout.write(f"put back {progress.redriven}, {progress.remaining} to go\n")


match sys.argv[1:]:
    case ["put", *names] if names:
        asyncio.run(put(names))
    case ["work"]:
        asyncio.run(work())
    case ["revive"]:
        asyncio.run(revive())
    case _:
        sys.exit("usage: mail.py put NAME… | mail.py work | mail.py revive")
