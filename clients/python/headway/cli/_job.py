"""Runs one command for one message: its environment, its input and output, and its end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from headway._lease import Lease

_ALL_HEADERS = "HEADWAY_HEADERS"
_MOST_BYTES = 128 * 1024  # of NAME=value and the NUL behind it: with more Linux starts no program
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9_]")
_GRACE_SECONDS = 10.0  # how long a program may take to end when its lease is lost; as of `headway stand`


class OutputGone(Exception):
    """Our standard output takes nothing any more: nobody reads it, or its disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def environment(lease: Lease, inherited: Mapping[str, str]) -> dict[str, str]:
    """The inherited environment and the message's HEADWAY_… variables.

    HEADWAY_HEADER_<NAME> is upper case with _ for what no name may contain; if two headers meet in one name, the later
    in order of their keys is seen. A value with a NUL byte, which no variable can hold, is in HEADWAY_HEADERS only.
    That one is left out where all headers together are more than a variable can hold; one alone never is.
    """
    made = {key: value for key, value in inherited.items() if not key.startswith(("HEADWAY_HEADER_", _ALL_HEADERS))}
    headers = dict(sorted(lease.headers.items()))
    for key, value in headers.items():
        if "\0" not in value:
            made["HEADWAY_HEADER_" + _NOT_IN_NAMES.sub("_", key.upper())] = value
    all_headers = json.dumps(headers)  # in ASCII
    if len(f"{_ALL_HEADERS}={all_headers}\0") <= _MOST_BYTES:
        made[_ALL_HEADERS] = all_headers
    return {
        **made,
        "HEADWAY_QUEUE": lease.queue.name,
        "HEADWAY_ID": lease.id,
        "HEADWAY_ATTEMPT": str(lease.attempt),
        "HEADWAY_TICKET": str(lease.ticket),
    }


async def run_job(command: Sequence[str], lease: Lease, writing: asyncio.Lock) -> str:
    """Runs the command with the payload on its standard input, and writes its output in one piece when it has ended.

    Answers "" if it succeeded, else why not: "exit status 3", "signal 9", or why it could not start. It runs in a
    process group of its own, so that Ctrl-C does not reach it; if this is cancelled the group is killed, and if the
    lease is lost it is told to end. Raises OutputGone.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(lease, os.environ),
            process_group=0,
        )
    )
    try:
        # Shielded: asyncio would kill the program only, and not what that has started already.
        process = await asyncio.shield(starting)
    except OSError as error:
        return f"cannot start: {error.strerror or error}"
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it could not start
            await _kill_group(await starting)
        raise
    ending = asyncio.create_task(_end_if_lost(process, lease))
    try:
        output, _ = await process.communicate(lease.payload)
    except asyncio.CancelledError:
        await _kill_group(process)
        raise
    finally:
        ending.cancel()
    if output:
        await _write_out(output, writing)
    status = process.returncode or 0
    return "" if status == 0 else f"exit status {status}" if status > 0 else f"signal {-status}"


async def _end_if_lost(process: asyncio.subprocess.Process, lease: Lease) -> None:
    """Only when the service says so, and not when the lease's time has run out: the service may be away for longer."""
    await lease.until_ended()
    _signal_group(process, signal.SIGTERM)
    await asyncio.sleep(_GRACE_SECONDS)
    _signal_group(process, signal.SIGKILL)


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _write_out(output: bytes, writing: asyncio.Lock) -> None:
    """Writes all of it before anybody else writes; in a thread, for whoever reads may be slow.

    One that reads nothing any more holds up that thread alone: nobody waits for it once this is cancelled.
    """
    async with writing:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        descriptor = sys.stdout.fileno()

        def write() -> None:
            error = _write_all(descriptor, output)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_tell, written, error)

        threading.Thread(target=write, daemon=True).start()
        try:
            await written
        except OSError as error:
            raise OutputGone(error) from None


def _write_all(descriptor: int, output: bytes) -> OSError | None:
    rest = memoryview(output)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        return error
    return None


def _tell(written: "asyncio.Future[None]", error: OSError | None) -> None:
    if written.done():  # cancelled
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
