"""The commands about whole queues that stand: list, describe, pause, close, purge, delete, check, repair; and info."""

import sys
from typing import Annotated

import typer

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import MOST_NUMBER, QueueName, WaitOption, YesOption
from headway.cli._exits import ExitCode
from headway.cli._output import Output, state_in_a_word, to_plain
from headway.v1.queue_pb2 import Queue as QueueState


@app.command(name="list")
def list_queues(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(help="Only names that begin with this.")] = "",
) -> None:
    """List queues with their numbers."""

    async def action(client: Client, output: Output) -> None:
        queues = []
        async for found in client.list_queues(prefix):
            if output.as_json:
                output.message(found)
            else:
                queues.append(found)
        if not output.as_json:
            output.table(
                ("queue", "length", "bound", "leased", "delayed", "dead", "state"),
                [
                    (
                        q.name,
                        q.counts.length,
                        q.policy.bound,
                        q.counts.leased,
                        q.counts.delayed,
                        q.counts.dead,
                        state_in_a_word(q),
                    )
                    for q in queues
                ],
            )

    perform(context, action)


def _show(output: Output, queue: QueueState) -> None:
    if output.as_json:
        output.message(queue)
        return
    rows: list[tuple[str, object]] = []
    for name, value in to_plain(queue).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        rows += ((f"{name}.{part}" if part else name, item) for part, item in parts)
    output.table(("field", "value"), [(name, str(value)) for name, value in rows])


@app.command()
def describe(context: typer.Context, queue: QueueName) -> None:
    """Tell everything about one queue."""

    async def action(client: Client, output: Output) -> None:
        _show(output, await client.queue(queue).describe())

    perform(context, action)


@app.command()
def pause(context: typer.Context, queue: QueueName) -> None:
    """Let a queue take messages and hand none out, until it is resumed."""

    async def action(client: Client, output: Output) -> None:
        _tell_state(output, await client.queue(queue).pause(), "paused")

    perform(context, action)


@app.command()
def resume(context: typer.Context, queue: QueueName) -> None:
    """Let a paused queue hand out messages again."""

    async def action(client: Client, output: Output) -> None:
        _tell_state(output, await client.queue(queue).resume(), "resumed")

    perform(context, action)


def _tell_state(output: Output, state: QueueState, done: str) -> None:
    if output.as_json:
        output.message(state)
    else:
        output.line(f"{done} {state.name}; {state.counts.length} messages wait")


@app.command()
def close(context: typer.Context, queue: QueueName, wait: WaitOption = None) -> None:
    """Close a queue for good: nothing more is put, the rest is worked off."""

    async def action(client: Client, output: Output) -> None:
        _tell_state(output, await client.queue(queue).close(wait=wait), "closed")

    perform(context, action)


@app.command()
def delete(context: typer.Context, queue: QueueName, wait: WaitOption = None, yes: YesOption = False) -> None:
    """Delete a queue with all its messages."""
    _confirm(f"Delete {queue} with all its messages?", is_sure=yes)

    async def action(client: Client, output: Output) -> None:
        await client.queue(queue).delete(wait=wait)
        if output.as_json:
            output.record({"queue": queue, "deleted": True})
        else:
            output.line(f"deleted {queue}")

    perform(context, action)


@app.command()
def purge(
    context: typer.Context,
    queue: QueueName,
    dead: Annotated[bool, typer.Option("--dead", help="The dead messages too.")] = False,
    yes: YesOption = False,
) -> None:
    """Remove every message that waits or is delayed; those being worked on stay."""
    which = "waiting, delayed and dead" if dead else "waiting and delayed"
    _confirm(f"Remove every {which} message of {queue}?", is_sure=yes)

    async def action(client: Client, output: Output) -> None:
        gone = await client.queue(queue).purge(dead=dead)
        if output.as_json:
            output.message(gone)
        else:
            output.line(f"removed {gone.waiting} waiting, {gone.delayed} delayed and {gone.dead} dead messages")

    perform(context, action)


@app.command()
def check(
    context: typer.Context,
    queue: QueueName,
    max_entries: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_NUMBER, help="Refuse to look at more entries; 0: 1,000,000, about a second's work."
        ),
    ] = 0,
) -> None:
    """Look whether everything kept of a queue fits together, and change nothing.

    Prints what is wrong, one finding a line, and ends with 8 if there is any. The store serves nobody else meanwhile.
    """

    async def action(client: Client, output: Output) -> ExitCode:
        found = await client.queue(queue).check(max_entries=max_entries)
        if output.as_json:
            output.message(found)
        else:
            for finding in found.findings:
                output.line(finding)
            output.notice(f"looked at {found.entries} entries: {len(found.findings) or 'nothing'} wrong")
        return ExitCode.UNSOUND if found.findings else ExitCode.OK

    perform(context, action)


@app.command()
def repair(
    context: typer.Context,
    queue: QueueName,
    confirm_holder: Annotated[
        str, typer.Option(help="Restore the role that this client, which is dead, still holds; else only tell.")
    ] = "",
) -> None:
    """Tell what a dead foreign client left behind, and put it right."""

    async def action(client: Client, output: Output) -> None:
        found = await client.queue(queue).repair(confirm_holder=confirm_holder)
        if output.as_json:
            output.message(found)
            return
        for finding in found.findings or ["nothing to repair"]:
            output.line(finding)
        if found.findings:
            output.line("repaired" if found.repaired else "nothing was changed; confirm the holder to repair")

    perform(context, action)


@app.command()
def info(context: typer.Context) -> None:
    """Tell the service's version, limits and store."""

    async def action(client: Client, output: Output) -> None:
        facts = await client.server_info()
        if output.as_json:
            output.message(facts)
            return
        rows: list[tuple[str, str]] = []
        for name, value in to_plain(facts).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            rows += ((f"{name}.{part}" if part else name, str(item)) for part, item in parts)
        output.table(("fact", "value"), rows)

    perform(context, action)


def _confirm(question: str, *, is_sure: bool) -> None:
    """Asks a person who sits at a terminal; a script is taken at its word."""
    if not is_sure and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)
