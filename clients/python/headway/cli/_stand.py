# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The command that stands in line: waits for its turn, runs a program holding the slot, and gives it up."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Annotated

import typer
from rich.spinner import Spinner
from rich.text import Text

from headway._client import Client
from headway._lease import Lease
from headway._places import Granted, Place
from headway._queue import Queue
from headway._stand import Stand
from headway.cli._app import app, perform
from headway.cli._arguments import ConsumerOption, LeaseOption, QueueName, parse_span, this_process
from headway.cli._exits import ExitCode
from headway.cli._held import HeldCommand, Interrupts
from headway.cli._job import environment
from headway.cli._output import Output
from headway.cli._slots import SLOT_VARIABLE, make_slots, slot_of
from headway.cli._telling import as_record, drawing, place_in_words
from headway.core.errors import QueueNotFound

_GRACE = timedelta(seconds=10)


@app.command()
def stand(
    context: typer.Context,
    queue: QueueName,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="What to run.", show_default=False)],
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, max=1_000_000, help="Make the queue with so many slots if there is none."),
    ] = None,
    wait: Annotated[
        timedelta | None,
        typer.Option(
            "--wait", metavar="SPAN", parser=parse_span, help="Give up if the turn does not come in this time."
        ),
    ] = None,
    lease: LeaseOption = None,
    consumer: ConsumerOption = "",
    grace: Annotated[
        timedelta | None,
        typer.Option(
            "--grace", metavar="SPAN", parser=parse_span, help="How long CMD may take to end when told; default 10s."
        ),
    ] = None,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Do not end CMD if the slot is lost while it runs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the place in line.")] = False,
) -> None:
    """Wait for a turn in line, then run a command: headway stand backup --slots 1 -- ./backup

    A fair lock for many machines: --slots N lets N run at a time, first come, first served. HEADWAY_SLOT tells CMD
    which slot it has. Whatever happens to CMD or to this command, the slot goes to the next in line.

    On a queue of messages, the turn is the message at the head: CMD gets the payload as its standard input, and the
    environment as of `headway work`. Exit status 0 acks it; anything else gives it to the queue's backoff.

    Ends with CMD's exit code (128 + N if signal N ended it). SIGINT or SIGTERM while waiting gives up the place; later
    it goes to CMD, which is killed if it takes longer than --grace, or at the second one. If the service says that the
    slot is lost, or cannot be asked until the lease lapses, CMD is ended: exit code 4. No turn: exit code 7.
    """
    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"there is no program {command[0]!r}", param_hint="CMD")

    async def action(client: Client, output: Output) -> int:
        turn = _Turn(
            client.queue(queue),
            command,
            output,
            slots=slots,
            wait=wait,
            lease=lease,
            consumer=consumer or this_process(),
            grace=_GRACE if grace is None else grace,
            keep_running=keep_running,
            quiet=quiet,
        )
        return await turn.take()

    perform(context, action)


class _Turn:
    """One run of the command: the wait in line, and what is done with the turn."""

    def __init__(
        self,
        queue: Queue,
        command: Sequence[str],
        output: Output,
        *,
        slots: int | None,
        wait: timedelta | None,
        lease: timedelta | None,
        consumer: str,
        grace: timedelta,
        keep_running: bool,
        quiet: bool,
    ) -> None:
        self._queue = queue
        self._command = command
        self._output = output
        self._slots = slots
        self._wait = wait
        self._lease = lease
        self._consumer = consumer
        self._grace = grace
        self._keep_running = keep_running
        self._is_quiet = quiet
        self._interrupts = Interrupts()
        self._spinner = Spinner("dots", Text("asking …"))

    async def take(self) -> int:
        """Waits, runs the command, and settles; the exit code."""
        try:
            with self._interrupts.cancelling():
                if self._slots is not None:
                    await make_slots(self._queue, self._slots)
            return await self._stand()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._interrupts.has_cancelled or task is None:
                raise
            task.uncancel()
            return 128 + (self._interrupts.last or 0)
        except QueueNotFound:
            self._output.notice("--slots N makes the queue")
            raise

    async def _stand(self) -> int:
        line = self._queue.stand(lease=self._lease, consumer=self._consumer)
        with self._interrupts.cancelling() as cancelling:
            async with line:
                lease = await self._turn(line)
                cancelling.close()
                return await self._use(lease) if lease is not None else ExitCode.NOTHING

    async def _turn(self, line: Stand) -> Lease | None:
        is_drawn = self._output.errors.is_terminal and not (self._is_quiet or self._output.as_json)
        try:
            async with asyncio.timeout(self._wait.total_seconds() if self._wait is not None else None):
                with drawing(self._output.errors, lambda: self._spinner, transient=True) if is_drawn else nullcontext():
                    async for told in line:
                        if isinstance(told, Granted):
                            return told.leases[0]
                        self._tell(told, is_drawn=is_drawn)
        except TimeoutError:
            self._output.notice("the turn did not come in time")
            return None
        self._output.notice(f"the queue {self._queue.name!r} is drained: there will be no turn")
        return None

    def _tell(self, place: Place, *, is_drawn: bool) -> None:
        if self._output.as_json:
            self._output.record_error(as_record(place))
        elif is_drawn:
            self._spinner.update(text=Text(f"you are {place_in_words(place)}, in line for {self._queue.name}"))
        elif not self._is_quiet:
            self._output.notice(f"{place_in_words(place)} in line for {self._queue.name}")

    async def _use(self, lease: Lease) -> int:
        slot = slot_of(lease)
        if self._slots is not None and not slot:
            raise ValueError(f"the queue {self._queue.name!r} holds messages, not only slots")
        variables = {key: value for key, value in environment(lease, os.environ).items() if key != SLOT_VARIABLE}
        held = HeldCommand(
            self._command,
            lease,
            self._output,
            variables=variables | ({SLOT_VARIABLE: slot} if slot else {}),
            payload=None if slot else lease.payload,
            grace=self._grace,
            keep_running=self._keep_running,
        )
        code = await held.run(self._interrupts)
        if held.is_lost and not self._keep_running:
            return ExitCode.REFUSED
        if not lease.is_lost:
            await self._settle(lease, "" if slot else held.failure, is_done=not slot and not held.failure)
        return code

    async def _settle(self, lease: Lease, failure: str, *, is_done: bool) -> None:
        """Acks a message that is done; gives back a slot, or whoever was interrupted, for free; else to the backoff."""
        if is_done:
            with self._interrupts.cancelling():  # it is tried for as long as the lease may live
                await lease.ack()
            return
        was_free = not failure or self._interrupts.last is not None
        await lease.give_back(failed_with=None if was_free else failure)
