"""Runs one command while a lease is held: passes signals on, and ends it if the lease is lost."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

from headway._lease import Lease
from headway.cli._output import Output

_CANNOT_START = 126  # the shell's code for a program that is there and cannot be run


class Interrupts:
    """The signals that ask us to end, in order; they are caught from its making on.

    While we wait they cancel us; from then on they are for the command that runs.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Task[object] | None = None
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self.last: signal.Signals | None = None
        self.has_cancelled = False
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._note, each)

    def _note(self, number: signal.Signals) -> None:
        self.last = number
        if self._waiting is None:
            self._received.put_nowait(number)
        elif not self.has_cancelled:
            self.has_cancelled = True
            self._waiting.cancel()

    @contextmanager
    def cancelling(self) -> Iterator[ExitStack]:
        """A signal cancels the current task, until the block ends or the stack that it gets is closed."""
        self._waiting = asyncio.current_task()
        with ExitStack() as stack:
            stack.callback(setattr, self, "_waiting", None)
            yield stack

    async def next(self) -> signal.Signals:
        """Waits for the next one."""
        return await self._received.get()


class HeldCommand:
    """One command, run while a lease is held.

    With a payload it gets that as its standard input; else it shares ours. If that is a terminal it stays in our
    process group, so that it may read there and Ctrl-C reaches it without us; else it gets a group of its own, and
    signals are passed on to all of the group. Whoever is told to end and does not is killed after `grace`.
    """

    def __init__(
        self,
        command: Sequence[str],
        lease: Lease,
        output: Output,
        *,
        variables: Mapping[str, str],
        payload: bytes | None,
        grace: timedelta,
        keep_running: bool,
    ) -> None:
        self._command = command
        self._lease = lease
        self._output = output
        self._variables = variables
        self._payload = payload
        self._grace = grace
        self._keep_running = keep_running
        self._is_ours = payload is None and sys.stdin is not None and sys.stdin.isatty()
        self._killer: asyncio.TimerHandle | None = None
        self.is_lost = False  # the lease was lost while it ran
        self.failure = ""  # why it did not succeed, in the words of `headway work`

    async def run(self, interrupts: Interrupts) -> int:
        """Runs it to its end; its exit status, or 128 and the signal that ended it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=None if self._payload is None else asyncio.subprocess.PIPE,
                env=dict(self._variables),
                process_group=None if self._is_ours else 0,
            )
        except OSError as error:
            self.failure = f"cannot start: {error.strerror or error}"
            self._output.notice(f"{self._command[0]}: {self.failure}")
            return _CANNOT_START
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._feed(process)),
                group.create_task(self._watch_lease(process)),
                group.create_task(self._pass_on(process, interrupts)),
            ]
            try:
                await process.wait()
            finally:
                for task in tasks:
                    task.cancel()
                if self._killer is not None:
                    self._killer.cancel()
                if self._killer is not None or process.returncode is None:
                    self._signal(process, signal.SIGKILL)  # what is left of its group, too
                    await process.wait()
        status = process.returncode or 0
        if status:
            self.failure = f"exit status {status}" if status > 0 else f"signal {-status}"
        return status if status >= 0 else 128 - status

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        if self._payload is None or process.stdin is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
            process.stdin.write(self._payload)
            await process.stdin.drain()
        process.stdin.close()

    async def _watch_lease(self, process: asyncio.subprocess.Process) -> None:
        await self._lease.until_over()
        self.is_lost = True
        if self._keep_running:
            self._output.notice(f"message {self._lease.id}: its lease is lost, and somebody else may have it now")
            return
        self._output.notice(f"message {self._lease.id}: its lease is lost, so {self._command[0]} is ended")
        self._end(process, signal.SIGTERM)

    async def _pass_on(self, process: asyncio.subprocess.Process, interrupts: Interrupts) -> None:
        while True:
            number = await interrupts.next()
            if self._is_ours and number is signal.SIGINT:
                continue  # the terminal sent it to the command as well, which does with it what it likes
            self._end(process, signal.SIGKILL if self._killer is not None else number)

    def _end(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """Tells it to end, and sees to it that it does."""
        self._signal(process, number)
        if self._killer is None:
            loop = asyncio.get_running_loop()
            self._killer = loop.call_later(self._grace.total_seconds(), self._signal, process, signal.SIGKILL)

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._is_ours:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)
