# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The command that works: runs a program for each message, several at a time, until told to stop."""

import asyncio
import shutil
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from headway._client import Client
from headway._lease import Lease
from headway._queue import Queue
from headway.cli._app import app, perform
from headway.cli._arguments import ConsumerOption, LeaseOption, QueueName, this_process
from headway.cli._exits import ExitCode
from headway.cli._job import OutputGone, run_job
from headway.cli._output import Output
from headway.core.errors import QueueDeleted, QueueNotFound

_ABSENT_PAUSE_SECONDS = 0.5


@app.command()
def work(
    context: typer.Context,
    queue: QueueName,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="What to run.", show_default=False)],
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="How many at a time.")] = 1,
    lease: LeaseOption = None,
    consumer: ConsumerOption = "",
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to lease.")] = False,
) -> None:
    """Run a command for each message: headway work mail -j 4 -- ./send

    The payload is its standard input; HEADWAY_QUEUE, HEADWAY_ID, HEADWAY_ATTEMPT, HEADWAY_TICKET, HEADWAY_HEADERS
    (JSON; not set if that is more than 128 KiB) and HEADWAY_HEADER_<NAME> are in its environment. Exit status 0 acks
    the message; anything else, or a signal, gives it to the queue's backoff. Its lease is kept alive meanwhile; if it
    is lost, CMD gets SIGTERM, and is killed 10 s later. What it writes is written in one piece when it ends, also if it
    failed; if that cannot be written, its message goes back for free, and this ends.

    Ends by itself when the queue is closed and drained. Waits for a queue that is not there, or is deleted; but with
    --drain, one that is deleted meanwhile ends it with exit code 3. SIGINT or SIGTERM: finish what runs, then end; a
    second one kills what runs and gives its messages back for free.
    """
    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"there is no program {command[0]!r}", param_hint="CMD")

    async def action(client: Client, output: Output) -> int:
        name = consumer or this_process()
        worker = _Worker(client.queue(queue), command, output, jobs=jobs, lease=lease, consumer=name, drain=drain)
        return await worker.work()

    perform(context, action)


class _Worker:
    """One run of the command: its jobs, and the signals that end it."""

    def __init__(
        self,
        queue: Queue,
        command: Sequence[str],
        output: Output,
        *,
        jobs: int,
        lease: timedelta | None,
        consumer: str,
        drain: bool,
    ) -> None:
        self._queue = queue
        self._command = command
        self._output = output
        self._jobs = jobs
        self._lease = lease
        self._consumer = consumer
        self._drain = drain
        self._stop = asyncio.Event()
        self._writing = asyncio.Lock()
        self._running_count = 0
        self._output_error: OSError | None = None  # nothing more can be written
        self._killed_by: signal.Signals | None = None

    async def work(self) -> int:
        """Works until the end; the exit code. Raises OSError if what a job wrote could not be written."""
        running = asyncio.create_task(self._run())
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._interrupt, each, running)
        try:
            await running
        except asyncio.CancelledError:
            if self._killed_by is None:
                raise
            return 128 + self._killed_by
        if self._output_error is not None:
            raise self._output_error
        return ExitCode.OK

    def _interrupt(self, number: signal.Signals, running: "asyncio.Task[None]") -> None:
        if self._stop.is_set():
            self._killed_by = number
            running.cancel()
            return
        self._stop.set()
        if self._running_count:
            self._output.notice(f"finishing {self._running_count} running; once more to kill")

    async def _run(self) -> None:
        is_told = False
        while not self._stop.is_set():
            try:
                # By calls: a job is worth more than a round trip, and is to outlive a restart of the service.
                await self._queue.run(
                    self._handle,
                    concurrency=self._jobs,
                    lease=self._lease,
                    consumer=self._consumer,
                    stop=self._stop,
                    drain=self._drain,
                    by="calls",
                )
            except QueueNotFound as error:
                if self._drain and isinstance(error, QueueDeleted):
                    raise  # nothing is left; who drains waits for no other queue of the name
                if not is_told:
                    self._output.notice(f"there is no queue {self._queue.name!r}; waiting until somebody makes it")
                is_told = True
                await self._pause()
            else:
                return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_ABSENT_PAUSE_SECONDS):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _handle(self, lease: Lease) -> None:
        if self._output_error is not None:
            await lease.give_back(failed_with=None)
            return
        self._running_count += 1
        try:
            failure = await run_job(self._command, lease, self._writing)
        except OutputGone as gone:
            self._output_error = gone.error
            self._stop.set()
            await lease.give_back(failed_with=None)
            return
        finally:
            self._running_count -= 1
        if lease.is_lost:
            self._output.notice(f"message {lease.id}: its lease is lost, so {self._command[0]} was ended")
        elif failure:
            self._output.notice(f"message {lease.id}: {failure} in attempt {lease.attempt}; it goes back to the queue")
            await lease.give_back(failed_with=failure)
