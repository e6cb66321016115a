# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The commands about whole queues: create, list, describe, close, delete, purge, repair; and info about the service."""

import sys
from datetime import timedelta
from typing import Annotated

import typer

from headway._client import Client
from headway._policy import PolicyFields
from headway.cli._app import app, perform
from headway.cli._arguments import QueueName, WaitOption, YesOption, parse_span
from headway.cli._output import Output, to_plain
from headway.v1.queue_pb2 import Queue as QueueState


def _span_option(name: str, text: str) -> object:
    return typer.Option(name, metavar="SPAN", parser=parse_span, help=text, rich_help_panel="Policy")


def _number_option(name: str, text: str) -> object:
    return typer.Option(name, help=text, rich_help_panel="Policy")


@app.command()
def create(
    context: typer.Context,
    queue: QueueName,
    bound: Annotated[int | None, _number_option("--bound", "The most messages that may wait; 0: no bound.")] = None,
    limit: Annotated[int | None, _number_option("--limit", "The most leases at once; 0: no limit.")] = None,
    lease: Annotated[timedelta | None, _span_option("--lease", "How long a lease lasts; default 30s.")] = None,
    max_attempts: Annotated[
        int | None, _number_option("--max-attempts", "Failures until a message is dead; 0: no limit.")
    ] = None,
    min_backoff: Annotated[timedelta | None, _span_option("--min-backoff", "Wait after the first failure.")] = None,
    max_backoff: Annotated[timedelta | None, _span_option("--max-backoff", "The longest such wait.")] = None,
    multiplier: Annotated[float | None, _number_option("--multiplier", "From one wait to the next.")] = None,
    jitter: Annotated[float | None, _number_option("--jitter", "Randomness of a wait, 0 to 1.")] = None,
    time_to_live: Annotated[timedelta | None, _span_option("--time-to-live", "The oldest a message may get.")] = None,
    place_grace: Annotated[timedelta | None, _span_option("--place-grace", "How long a lost place is kept.")] = None,
    dedupe_window: Annotated[timedelta | None, _span_option("--dedupe-window", "How long a done id counts.")] = None,
    remember: Annotated[timedelta | None, _span_option("--remember", "How long an outcome is remembered.")] = None,
) -> None:
    """Make a queue with a policy; the same again changes nothing."""
    fields = PolicyFields(
        bound=bound,
        limit=limit,
        lease=lease,
        max_attempts=max_attempts,
        min_backoff=min_backoff,
        max_backoff=max_backoff,
        multiplier=multiplier,
        jitter=jitter,
        time_to_live=time_to_live,
        place_grace=place_grace,
        dedupe_window=dedupe_window,
        remember=remember,
    )

    async def action(client: Client, output: Output) -> None:
        response = await client.queue(queue).create(**fields)
        if output.as_json:
            output.message(response)
        else:
            output.line(f"created {queue}" if response.created else f"{queue} stands already, with this policy")

    perform(context, action)


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
                        _state(q),
                    )
                    for q in queues
                ],
            )

    perform(context, action)


def _state(queue: QueueState) -> str:
    return "closed" if queue.closed else "paused" if queue.paused else "open"


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
def close(context: typer.Context, queue: QueueName, wait: WaitOption = None) -> None:
    """Close a queue for good: nothing more is put, the rest is worked off."""

    async def action(client: Client, output: Output) -> None:
        handle = client.queue(queue)
        state = await (handle.close() if wait is None else handle.close(wait=wait))
        if output.as_json:
            output.message(state)
        else:
            output.line(f"closed {queue}; {state.counts.length} messages wait")

    perform(context, action)


@app.command()
def delete(context: typer.Context, queue: QueueName, wait: WaitOption = None, yes: YesOption = False) -> None:
    """Delete a queue with all its messages."""
    _confirm(f"Delete {queue} with all its messages?", is_sure=yes)

    async def action(client: Client, output: Output) -> None:
        handle = client.queue(queue)
        await (handle.delete() if wait is None else handle.delete(wait=wait))
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
    _confirm(f"Remove every waiting and delayed message of {queue}?", is_sure=yes)

    async def action(client: Client, output: Output) -> None:
        gone = await client.queue(queue).purge(dead=dead)
        if output.as_json:
            output.message(gone)
        else:
            output.line(f"removed {gone.waiting} waiting, {gone.delayed} delayed and {gone.dead} dead messages")

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
