# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The commands that look after dead messages: dead lists them, redrive puts them back."""

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import QueueName
from headway.cli._exits import ExitCode
from headway.cli._output import Output, printable
from headway.v1.admin_service_pb2 import DeadMessage, RedriveResponse

_PREVIEW_CHARACTERS = 60
_COLUMNS = ("id", "failures", "died", "cause", "last error", "replays")


@app.command()
def dead(
    context: typer.Context,
    queue: QueueName,
    without_payloads: Annotated[bool, typer.Option("--without-payloads", help="Leave the payloads out.")] = False,
) -> None:
    """List the dead messages, in the order they died."""

    async def action(client: Client, output: Output) -> ExitCode | None:
        found = []
        is_any = False
        async for message in client.queue(queue).dead(without_payloads=without_payloads):
            is_any = True
            if output.as_json:
                output.message(message)
            else:
                found.append(_row(message, has_payload=not without_payloads))
        if found:
            output.table(_COLUMNS if without_payloads else (*_COLUMNS, "payload"), found)
        return None if is_any else ExitCode.NOTHING

    perform(context, action)


def _row(dead: DeadMessage, *, has_payload: bool) -> tuple[object, ...]:
    died = dead.died_at.ToDatetime().isoformat(timespec="seconds") + "Z"
    row = (dead.message.id, dead.failures, died, dead.cause, dead.last_error, dead.replays)
    text = dead.message.payload.decode("utf-8", "replace")
    return (*row, printable(text, _PREVIEW_CHARACTERS)) if has_payload else row


@app.command()
def redrive(
    context: typer.Context,
    queue: QueueName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Which messages.", show_default=False)] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All that are dead now.")] = False,
    to_queue: Annotated[str, typer.Option("--to", metavar="QUEUE", help="Into this queue; default: the same.")] = "",
    rate: Annotated[float, typer.Option(metavar="N", help="At most so many per second; 0: no limit.")] = 0.0,
) -> None:
    """Put dead messages back at the tail of the line, as if never delivered.

    Waits while that queue is full. Ctrl-C stops it: what was put back stays, and the same again goes on with the rest.
    """
    if bool(ids) == is_all:
        raise typer.BadParameter("name messages by their ids, or say --all", param_hint="ID")

    async def action(client: Client, output: Output) -> ExitCode:
        answers = client.queue(queue).redrive(ids or None, to_queue=to_queue, rate=rate)
        report = _Report(output)
        async with aclosing(answers):
            with report:
                async for answer in answers:
                    report.tell(answer)
        return report.code

    perform(context, action)


class _Report:
    """Tells how far a redrive is: a bar at a terminal, one JSON object a line for scripts, and the sum at its end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last: RedriveResponse | None = None
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=output.errors,
            disable=output.as_json or not output.errors.is_terminal,
        )
        self._task = self._progress.add_task("redrive", total=None)
        self.code = ExitCode.OK

    def tell(self, answer: RedriveResponse) -> None:
        """Notes one answer and shows it."""
        self._last = answer
        if self._output.as_json:
            self._output.message(answer)
        total = answer.redriven + answer.remaining
        self._progress.update(self._task, completed=answer.redriven, total=total)

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._progress.stop()
        if self._last is None:
            if kind is asyncio.CancelledError:
                self._output.notice("stopped before it was told how far it is")
            return
        for missing in self._last.not_found_ids:
            self.code = ExitCode.NOT_FOUND
            if not self._output.as_json:
                self._output.notice(f"{missing}: not dead")
        if self._output.as_json:
            return
        if kind is None:
            self._output.line(f"put back {self._last.redriven} messages")
        else:
            # The step under way when the stream ended may have put back some more.
            self._output.notice(f"stopped: at least {self._last.redriven} put back, {self._last.remaining} to go")
