# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The commands that name messages which wait or are delayed: withdraw and postpone."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import MessageIds, QueueName, parse_instant, parse_span
from headway.cli._exits import ExitCode, exit_code
from headway.cli._output import Output
from headway.core.error import from_status
from headway.v1.message_pb2 import Settled, SettleResult
from headway.v1.queue_service_pb2 import WithdrawResult


@app.command()
def withdraw(context: typer.Context, queue: QueueName, ids: MessageIds) -> None:
    """Cancel messages that wait or are delayed, wherever they stand; those behind move up."""

    async def action(client: Client, output: Output) -> ExitCode:
        results = await client.queue(queue).withdraw(ids)
        return max((_tell_withdrawn(output, result) for result in results), default=ExitCode.OK)

    perform(context, action)


def _tell_withdrawn(output: Output, result: WithdrawResult) -> ExitCode:
    if output.as_json:
        output.message(result)
    elif not result.HasField("error"):
        output.line(f"{result.id}: withdrawn")
    else:
        output.notice(f"{result.id}: {from_status(result.error)}")
    return exit_code(from_status(result.error)) if result.HasField("error") else ExitCode.OK


@app.command()
def postpone(
    context: typer.Context,
    queue: QueueName,
    ids: MessageIds,
    delay: Annotated[
        timedelta | None,
        typer.Option("--delay", metavar="SPAN", parser=parse_span, help="They join the line after this long; 0: now."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            "--until", metavar="INSTANT", parser=parse_instant, help="… or at this instant, as 2030-01-31T08:00:00Z."
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at the messages later.")] = "",
) -> None:
    """Let messages that wait or are delayed join the line later; by the queue's backoff if nothing is said."""
    if delay is not None and until is not None:
        raise typer.BadParameter("give --delay or --until", param_hint="--until")

    async def action(client: Client, output: Output) -> ExitCode:
        results = await client.queue(queue).postpone(ids, until if delay is None else delay, reason=reason)
        return max((_tell_postponed(output, result) for result in results), default=ExitCode.OK)

    perform(context, action)


def _tell_postponed(output: Output, result: SettleResult) -> ExitCode:
    code, text = ExitCode.OK, "waits in line already"
    if result.settled == Settled.SETTLED_DELAYED:
        text = f"joins the line at {result.available_at.ToJsonString()}"
    elif result.settled == Settled.SETTLED_STALE:
        code, text = ExitCode.REFUSED, "somebody works on it: only its lease has a say"
    elif result.settled == Settled.SETTLED_GONE:
        code, text = ExitCode.NOT_FOUND, "no such message waits or is delayed"
    if output.as_json:
        output.message(result)
    else:
        (output.notice if code else output.line)(f"{result.id}: {text}")
    return code
