# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The commands that take messages: get, ack, and peek, which only looks."""

import os
import shlex
import sys
from datetime import timedelta
from typing import Annotated

import typer

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import (
    MOST_COUNT,
    MOST_NUMBER,
    ConsumerOption,
    LeaseOption,
    QueueName,
    WaitOption,
    this_process,
)
from headway.cli._exits import ExitCode
from headway.cli._output import Output, printable
from headway.v1.message_pb2 import Delivery, Settled, SettleResult

_PREVIEW_CHARACTERS = 60


@app.command()
def get(
    context: typer.Context,
    queue: QueueName,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=MOST_COUNT, help="At most this many messages.")] = 1,
    wait: WaitOption = None,
    lease: LeaseOption = None,
    consumer: ConsumerOption = "",
    ack: Annotated[bool, typer.Option("--ack", help="Ack them once they are written.")] = False,
) -> None:
    """Lease messages and write their payloads: one as its bytes are, several as lines.

    Without --ack the leases stand on standard error, or in the JSON; settle them with `headway ack`. What could not be
    written, be it that nobody reads it, goes back; with --ack all of it.
    """

    async def action(client: Client, output: Output) -> ExitCode | None:
        handle = client.queue(queue)
        response = await handle.get(count, wait=wait, lease=lease, consumer=consumer or this_process())
        if not response.deliveries:
            return ExitCode.NOTHING
        told: list[str] = []
        try:
            for delivery in response.deliveries:
                _write(output, delivery, is_line=count > 1)
                told.append(delivery.lease)
                if not ack and not output.as_json:
                    until = delivery.lease_expires_at.ToDatetime().isoformat(timespec="seconds")
                    output.notice(f"leased until {until}Z; then: headway ack {shlex.quote(queue)} -- {delivery.lease}")
        except OSError:  # nobody reads any more, or a disk is full: what nobody is going to settle goes back
            left = [each.lease for each in response.deliveries if ack or each.lease not in told]
            await handle.delay(left, timedelta(0), keep_attempt=True)
            raise
        if not ack:
            return None
        return _verdict(output, await handle.ack([d.lease for d in response.deliveries]))

    perform(context, action)


def _write(output: Output, delivery: Delivery, *, is_line: bool) -> None:
    payload = delivery.message.payload
    if output.as_json:
        output.message(delivery)
    elif is_line or (sys.stdout.isatty() and not payload.endswith(b"\n")):
        output.raw(payload + b"\n")
    else:
        output.raw(payload)


@app.command()
def ack(
    context: typer.Context,
    queue: QueueName,
    leases: Annotated[list[str], typer.Argument(metavar="LEASE…", help="Leases that get told.", show_default=False)],
    result: Annotated[str, typer.Option(help="A small result, kept with the messages' outcome.")] = "",
) -> None:
    """Settle leases for good: their messages are done. Write -- before the leases, for one may begin with a dash."""

    async def action(client: Client, output: Output) -> ExitCode:
        results = await client.queue(queue).ack(leases, result=os.fsencode(result))
        for settled in results if output.as_json else ():
            output.message(settled)
        return _verdict(output, results)

    perform(context, action)


def _verdict(output: Output, results: list[SettleResult]) -> ExitCode:
    """Says on standard error which leases had no say, and answers the code for it."""
    code = ExitCode.OK
    for result in results:
        if result.settled == Settled.SETTLED_DEAD:
            output.notice(f"too late, the message is dead: {result.lease}")
            code = max(code, ExitCode.REFUSED)
        elif result.settled == Settled.SETTLED_STALE:
            output.notice(f"stale, somebody newer holds or held the message: {result.lease}")
            code = max(code, ExitCode.REFUSED)
        elif result.settled == Settled.SETTLED_GONE:
            output.notice(f"gone, never given or no more: {result.lease}")
            code = max(code, ExitCode.NOT_FOUND)
    return code


@app.command()
def peek(
    context: typer.Context,
    queue: QueueName,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, max=MOST_COUNT, help="At most this many messages.")
    ] = 10,
    position: Annotated[
        int, typer.Option("--from", min=1, max=MOST_NUMBER, help="The position of the first to show.")
    ] = 1,
) -> None:
    """Look at waiting messages and touch nothing."""

    async def action(client: Client, output: Output) -> ExitCode | None:
        found = await client.queue(queue).peek(count, from_position=position)
        if output.as_json:
            for message in found:
                output.message(message)
        elif found:
            output.table(
                ("position", "ticket", "id", "failures", "bytes", "payload"),
                [
                    (
                        m.position,
                        m.ticket,
                        m.message.id,
                        m.failures,
                        len(m.message.payload),
                        printable(m.message.payload.decode("utf-8", "replace"), _PREVIEW_CHARACTERS),
                    )
                    for m in found
                ],
            )
        return None if found else ExitCode.NOTHING

    perform(context, action)
