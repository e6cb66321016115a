"""The command that tells who works on what."""

from typing import Annotated

import typer

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import MOST_COUNT, QueueName
from headway.cli._exits import ExitCode
from headway.cli._output import Output
from headway.v1.admin_service_pb2 import LeasedMessage

_COLUMNS = ("id", "consumer", "attempt", "leased", "until", "progress")


@app.command()
def leased(
    context: typer.Context,
    queue: QueueName,
    most: Annotated[
        int, typer.Option("--most", "-n", metavar="N", min=0, max=MOST_COUNT, help="At most so many: 1 to 1000.")
    ] = 100,
) -> None:
    """List the messages that are being worked on, and by whom: those first whose lease ends first."""

    async def action(client: Client, output: Output) -> ExitCode | None:
        found = await client.queue(queue).leased(most)
        if output.as_json:
            for message in found:
                output.message(message)
        elif found:
            output.table(_COLUMNS, [_row(message) for message in found])
        return None if found else ExitCode.NOTHING

    perform(context, action)


def _row(message: LeasedMessage) -> tuple[object, ...]:
    since = message.leased_at.ToDatetime().isoformat(timespec="seconds") + "Z" if message.HasField("leased_at") else ""
    until = message.lease_expires_at.ToDatetime().isoformat(timespec="seconds") + "Z"
    progress = f"{message.progress.fraction:.0%} {message.progress.note}" if message.HasField("progress") else ""
    return message.id, message.consumer, message.attempt, since, until, progress.strip()
